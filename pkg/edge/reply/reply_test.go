package reply

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestWrite(t *testing.T) {
	tests := map[string]struct {
		kind   string
		major  int
		method string
		want   http.Header
		code   int
		body   string
	}{
		"HTTP": {
			major: 1, code: 429, body: "too many, again\n",
			want: http.Header{
				"Cache-Control": {"no-store"}, "Content-Type": {"text/plain; charset=utf-8"},
				"X-Content-Type-Options": {"nosniff"},
			},
		},
		"HEAD": {
			major: 1, code: 429, method: http.MethodHead,
			want: http.Header{
				"Cache-Control": {"no-store"}, "Content-Type": {"text/plain; charset=utf-8"},
				"X-Content-Type-Options": {"nosniff"},
			},
		},
		"gRPC": {
			kind: "application/grpc+proto", major: 2, code: 200,
			want: http.Header{
				"Cache-Control": {"no-store"}, "Content-Type": {"application/grpc"}, "Grpc-Status": {"8"},
				"Grpc-Message": {"too many%2C again"},
			},
		},
	}
	for name, test := range tests {
		r := httptest.NewRequest(test.method, "/", nil)
		r.Header.Set("Content-Type", test.kind)
		r.ProtoMajor = test.major
		w := httptest.NewRecorder()
		Refuse(w, r, http.StatusTooManyRequests, ResourceExhausted, "too many, again")
		if diff := cmp.Diff(test.want, w.Header()); diff != "" || w.Code != test.code || w.Body.String() != test.body {
			t.Errorf("%s: got %d %q\n%s", name, w.Code, w.Body, diff)
		}
	}
}

func TestIsGRPC(t *testing.T) {
	for kind, want := range map[string]bool{
		"application/grpc": true, "application/grpc+json": true, "application/grpc; x=y": true,
		"application/grpc-web": false, "application/json": false, "": false,
	} {
		r := httptest.NewRequest(http.MethodPost, "/", nil)
		r.Header.Set("Content-Type", kind)
		if IsGRPC(r) {
			t.Errorf("%q over HTTP/1.1 cannot be gRPC", kind)
		}
		r.ProtoMajor = 2
		if IsGRPC(r) != want {
			t.Errorf("%q: got %t", kind, !want)
		}
	}
}
