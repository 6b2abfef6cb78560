package admin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// start runs a server until the test ends and returns its base URL.
func start(t *testing.T, o Options, ready func() error) string {
	t.Helper()
	o.Address, o.Registry = "127.0.0.1:0", NewRegistry(nil)
	server := New(o)
	server.Probe(ready)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- server.Run(ctx) }()
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("got %v from Run", err)
		}
	})
	for server.Ready() != nil {
		time.Sleep(time.Millisecond)
	}
	return "http://" + server.Addr().String()
}

func TestPages(t *testing.T) {
	page := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "my page") })
	notReady := errors.Join(errors.New("relay: no listener"), errors.New("web: no backend"))
	tests := map[string]struct {
		path  string
		ready error
		code  int
		body  string
	}{
		"metrics":                {path: "/metrics", code: 200, body: "stack_build_info{"},
		"alive":                  {path: "/healthz", code: 200, body: "ok\n"},
		"ready":                  {path: "/readyz", code: 200, body: "ok\n"},
		"not ready":              {path: "/readyz", ready: notReady, code: 503, body: "relay: no listener\nweb: no backend\n"},
		"alive though not ready": {path: "/healthz", ready: notReady, code: 200, body: "ok\n"},
		"own page":               {path: "/routes", code: 200, body: "my page"},
		"index":                  {path: "/", code: 200, body: "/debug/pprof/\n/healthz\n/metrics\n/readyz\n/routes\n"},
		"pprof":                  {path: "/debug/pprof/", code: 200, body: "goroutine"},
		"nothing":                {path: "/nothing", code: 404},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			base := start(t, Options{Handlers: map[string]http.Handler{"/routes": page}},
				func() error { return test.ready })
			response, err := http.Get(base + test.path)
			if err != nil {
				t.Fatal(err)
			}
			defer response.Body.Close()
			body, err := io.ReadAll(response.Body)
			if err != nil {
				t.Fatal(err)
			}
			if response.StatusCode != test.code || !strings.Contains(string(body), test.body) {
				t.Errorf("got %d %q, want %d with %q", response.StatusCode, body, test.code, test.body)
			}
		})
	}
}

func TestProfilesAreForTheLoopbackInterface(t *testing.T) {
	server := New(Options{Registry: NewRegistry(nil)})
	for from, code := range map[string]int{
		"127.0.0.1:5": 200, "[::1]:5": 200, "[::ffff:127.0.0.1]:5": 200, "192.0.2.1:5": 403, "[2001:db8::1]:5": 403, "@": 403,
	} {
		request := httptest.NewRequest(http.MethodGet, "/debug/pprof/", http.NoBody)
		request.RemoteAddr, request.Host = from, "localhost:9069"
		recorder := httptest.NewRecorder()
		server.mux.ServeHTTP(recorder, request)
		if recorder.Code != code {
			t.Errorf("from %s: got %d, want %d", from, recorder.Code, code)
		}
	}
}

func TestAddressInUseIsNamed(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	address := taken.Addr().String()
	for name, open := range map[string]func(*Server, context.Context) error{"Open": (*Server).Open, "Run": (*Server).Run} {
		err = open(New(Options{Address: address, Registry: NewRegistry(nil)}), t.Context())
		if err == nil || !strings.Contains(err.Error(), address) || !strings.Contains(err.Error(), "ss -ltnp") {
			t.Errorf("%s: got %v, want the address, the reason, and how to find who has it", name, err)
		}
	}
}

func TestMetricsAreWellNamed(t *testing.T) {
	problems, err := testutil.GatherAndLint(NewRegistry(nil), "stack_build_info")
	if err != nil {
		t.Fatal(err)
	}
	if len(problems) > 0 {
		t.Errorf("got %v", problems)
	}
}
