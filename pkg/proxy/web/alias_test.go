package web

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/tinkerbell/stack/pkg/proxy/http1"
)

// aliases are names by which a backend may know the address headers, and others that are not the client's to send.
var aliases = []string{
	"X_Forwarded_For", "x_forwarded_for", "X-Forwarded_For", "x_Forwarded-FOR", "X.Forwarded.For", "X~Forwarded!For",
	"X_Real_IP", "x-real_ip", "X_Forwarded_Proto", "X_FORWARDED_HOST", "Content_Length", "Transfer_Encoding",
	"Proxy_Connection", "Keep_Alive",
}

// alias is whether a name means something only where another character is taken for a hyphen.
func alias(name string) bool {
	return http1.MeaningOf(name) != http1.Pass && strings.ContainsAny(name, "!#$%&'*+.^_`|~")
}

// heard collects the names and values that an endpoint is told.
type heard struct {
	mu    sync.Mutex
	names []string
}

func (h *heard) ServeHTTP(_ http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body) // trailers are there after that
	h.mu.Lock()
	defer h.mu.Unlock()
	for kind, header := range map[string]http.Header{"": r.Header, "trailer": r.Trailer} {
		for name, values := range header {
			if h.names = append(h.names, name); kind != "" && http1.MeaningOf(name) == http1.Forwarded {
				h.names = append(h.names, kind+" "+name)
			}
			if slices.ContainsFunc(values, func(v string) bool { return strings.Contains(v, "192.0.2.66") }) {
				h.names = append(h.names, name+" with the client's word")
			}
		}
	}
}

// forged are the names that are an alias, or hold what the client says of its address.
func (h *heard) forged() (all []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, name := range h.names {
		if strings.Contains(name, " ") || alias(name) {
			all = append(all, name)
		}
	}
	return all
}

// No alias of an address header reaches an endpoint in any way that a request can take, be it listed in Connection, or
// behind the body.
func TestAliasesNeverReachTheEndpoint(t *testing.T) {
	t.Parallel()
	withAndWithout(t, testAliasesNeverReachTheEndpoint)
}

func testAliasesNeverReachTheEndpoint(t *testing.T, start starter) {
	chunked := func(line, trailer string) string {
		return "POST / HTTP/1.1\r\nHost: h\r\n" + line + "Trailer: " + trailer +
			"\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n" + trailer + ": 192.0.2.66\r\n\r\n"
	}
	for _, name := range aliases {
		line := name + ": 192.0.2.66\r\n"
		for way, request := range map[string]string{
			"plain":     "GET / HTTP/1.1\r\nHost: h\r\n" + line + "\r\n",
			"pool":      "GET / HTTP/1.1\r\nHost: h\r\nVia: 1.1 a\r\n" + line + "\r\n",
			"Transport": "GET / HTTP/1.1\r\nHost: h\r\nTe: trailers\r\n" + line + "\r\n",
			"body":      "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n" + line + "\r\nx",
			"listed":    "GET / HTTP/1.1\r\nHost: h\r\nConnection: keep-alive, X-Forwarded-For, X-Real-IP\r\n" + line + "\r\n",
			"upgrade":   "GET / HTTP/1.1\r\nHost: h\r\nConnection: upgrade, X-Forwarded-For\r\nUpgrade: x\r\n" + line + "\r\n",
			"trailer":   chunked("", name),
			"address":   chunked("", "X-Forwarded-For"),
			"real IP":   chunked("", "X-Real-Ip"),
			"both ways": chunked(line, "Forwarded"),
		} {
			t.Run(way+" "+name, func(t *testing.T) {
				var h heard
				r := start(t, Settings{Pool: pool(backend(t, h.ServeHTTP))})
				if response, _ := r.talk(t).ask(t, request); response.StatusCode != http.StatusOK {
					t.Fatalf("answered %s", response.Status)
				}
				if all := h.forged(); len(all) > 0 {
					t.Errorf("the endpoint is told %q", all)
				}
				if !slices.Contains(h.names, http1.ForwardedFor) || !slices.Contains(h.names, http1.RealIP) {
					t.Errorf("the endpoint is not told who calls: %q", h.names)
				}
			})
		}
	}
}

// The same over HTTP/2, as gRPC goes.
func TestAliasesNeverReachAGRPCEndpoint(t *testing.T) {
	t.Parallel()
	for _, name := range append(slices.Clone(aliases), "Trailer:X-Forwarded-For", "Trailer:X_Real_IP") {
		t.Run(name, func(t *testing.T) {
			var h heard
			r := start(t, Settings{GRPC: true, Pool: pool(h2c(t, h.ServeHTTP))})
			r.speakH2C(t)
			request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, r.url+"/s/M", io.NopCloser(strings.NewReader("x")))
			if err != nil {
				t.Fatal(err)
			}
			if trailer, ok := strings.CutPrefix(name, "Trailer:"); ok {
				request.Trailer = http.Header{trailer: {"192.0.2.66"}}
			} else {
				request.Header[name] = []string{"192.0.2.66"}
			}
			response, err := r.http.Do(request)
			if err != nil {
				t.Fatal(err)
			}
			_ = response.Body.Close()
			if all := h.forged(); len(all) > 0 || !slices.Contains(h.names, http1.ForwardedFor) {
				t.Errorf("the endpoint is told %q, of %q", all, h.names)
			}
		})
	}
}

// What is not an alias passes as it came.
func TestOtherPunctuationPasses(t *testing.T) {
	withAndWithout(t, func(t *testing.T, start starter) {
		r := start(t, Settings{Pool: pool(backend(t, func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprint(w, r.Header["X_machine"], r.Header["X.machine"])
		}))})
		for way, request := range ways {
			head := strings.TrimSuffix(request, "\r\n") + "X_machine: 1\r\n"
			want := "[1] []"
			if way != "plain" {
				head, want = head+"X.machine: 2\r\n", "[1] [2]"
			}
			if _, body := r.talk(t).ask(t, head+"\r\n"); body != want {
				t.Errorf("%s: %q, want %q", way, body, want)
			}
		}
	})
}
