package limit

import (
	"context"
	"encoding/binary"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"
	"sigs.k8s.io/yaml"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var ok = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") })

// peer is the client of a request.
func peer(r *http.Request) netip.Addr { return netip.MustParseAddrPort(r.RemoteAddr).Addr() }

// ask sends one request of a client through a handler.
func ask(h http.Handler, client string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.RemoteAddr = client
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// pass counts how many of n requests pass.
func pass(h http.Handler, client string, n int) int {
	passed := 0
	for range n {
		if ask(h, client).Code == http.StatusOK {
			passed++
		}
	}
	return passed
}

func TestRates(t *testing.T) {
	type step struct {
		after  time.Duration
		client string
		asks   int
		passes int
	}
	const a, b, a6, a6too, b6 = "192.0.2.1:1", "192.0.2.2:1", "[2001:db8::1]:1", "[2001:db8::2:1]:1", "[2001:db8:0:1::1]:1"
	tests := map[string]struct {
		config Config
		steps  []step
	}{
		"by client": {
			Config{PerClient: Rate{PerSecond: 10, Burst: 5}},
			[]step{{0, a, 8, 5}, {0, b, 8, 5}, {100 * time.Millisecond, a, 3, 1}, {time.Hour, a, 8, 5}},
		},
		"in total": {
			Config{Total: Rate{PerSecond: 10, Burst: 5}},
			[]step{{0, a, 3, 3}, {0, b, 8, 2}, {200 * time.Millisecond, b, 8, 2}},
		},
		"both, the total is not for one": {
			Config{Total: Rate{PerSecond: 1, Burst: 10}, PerClient: Rate{PerSecond: 1, Burst: 4}},
			[]step{{0, a, 100, 4}, {0, b, 100, 4}, {0, a6, 100, 2}},
		},
		"default burst": {
			Config{PerClient: Rate{PerSecond: 7.5}},
			[]step{{0, a, 100, 8}},
		},
		"one a minute": {
			Config{PerClient: Rate{PerSecond: 1.0 / 60}},
			[]step{{0, a, 5, 1}, {59 * time.Second, a, 5, 0}, {2 * time.Second, a, 5, 1}},
		},
		"IPv6 counts by /64, mapped IPv4 as IPv4": {
			Config{PerClient: Rate{PerSecond: 1, Burst: 2}},
			[]step{{0, a6, 1, 1}, {0, a6too, 5, 1}, {0, b6, 5, 2}, {0, a, 1, 1}, {0, "[::ffff:192.0.2.1]:1", 5, 1}},
		},
		"the seed's file path": {
			Config{Preset: "files"},
			[]step{{0, a, 3000, 2500}, {time.Second, a, 1000, 500}},
		},
		"no limit": {Config{}, []step{{0, a, 10000, 10000}}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				if err := test.config.Validate(); err != nil {
					t.Fatal(err)
				}
				h := New(test.config, "r", nil).Wrap(ok, peer)
				for i, step := range test.steps {
					time.Sleep(step.after)
					if got := pass(h, step.client, step.asks); got != step.passes {
						t.Errorf("step %d: %d of %d passed, want %d", i, got, step.asks, step.passes)
					}
				}
			})
		})
	}
}

func TestRefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		registry := prometheus.NewPedanticRegistry()
		h := New(Config{PerClient: Rate{PerSecond: 0.25}}, "files", NewMetrics(registry)).Wrap(ok, peer)
		ask(h, "192.0.2.1:1")
		time.Sleep(1500 * time.Millisecond)
		w := ask(h, "192.0.2.1:1")
		if w.Code != http.StatusTooManyRequests || w.Header().Get("Retry-After") != "3" {
			t.Errorf("got %d, Retry-After %q", w.Code, w.Header().Get("Retry-After"))
		}
		r := httptest.NewRequest(http.MethodPost, "/", nil)
		r.RemoteAddr, r.ProtoMajor = "192.0.2.1:2", 2
		r.Header.Set("Content-Type", "application/grpc")
		w = httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != http.StatusOK || w.Header().Get("Grpc-Status") != "8" {
			t.Errorf("gRPC: got %d %v", w.Code, w.Header())
		}
		want := `# HELP stack_proxy_limited_total Requests that were refused by a limit, by reason.
# TYPE stack_proxy_limited_total counter
stack_proxy_limited_total{reason="client_concurrent",route="files"} 0
stack_proxy_limited_total{reason="client_rate",route="files"} 2
stack_proxy_limited_total{reason="concurrent",route="files"} 0
stack_proxy_limited_total{reason="rate",route="files"} 0
`
		if err := testutil.GatherAndCompare(registry, strings.NewReader(want), "stack_proxy_limited_total"); err != nil {
			t.Error(err)
		}
		if problems, err := testutil.GatherAndLint(registry); err != nil || len(problems) > 0 {
			t.Errorf("%v %v", problems, err)
		}
	})
}

func TestConcurrent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		slow := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-release })
		l := New(Config{Concurrent: 100, ConcurrentPerClient: 70}, "r", nil)
		h := l.Wrap(slow, peer)
		var passed, refused atomic.Int64
		var asking sync.WaitGroup
		for i, client := range []string{"192.0.2.1:1", "192.0.2.2:1"} {
			for range 80 {
				asking.Go(func() {
					if ask(h, client).Code == http.StatusOK {
						passed.Add(1)
					} else {
						refused.Add(1)
					}
				})
			}
			synctest.Wait()
			if got, want := refused.Load(), []int64{10, 60}[i]; got != want {
				t.Errorf("%d refused, want %d", got, want)
			}
		}
		close(release)
		asking.Wait()
		if passed.Load() != 100 || l.concurrent.all != 0 || len(l.concurrent.clients) != 0 {
			t.Errorf("%d passed, %d and %d left", passed.Load(), l.concurrent.all, len(l.concurrent.clients))
		}
		if got := pass(h, "192.0.2.1:1", 100); got != 100 {
			t.Errorf("%d of 100 pass after all have ended", got)
		}
	})
}

func TestConcurrentIsGivenBackByAPanic(t *testing.T) {
	h := New(Config{Concurrent: 1}, "r", nil).Wrap(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		panic(http.ErrAbortHandler)
	}), peer)
	for range 3 {
		func() {
			defer func() { _ = recover() }()
			if got := ask(h, "192.0.2.1:1").Code; got != http.StatusOK {
				t.Errorf("got %d", got)
			}
		}()
	}
}

func TestTableIsBoundedAndForgets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(Config{PerClient: Rate{PerSecond: 1, Burst: 2}}, "r", nil)
		drop := 0
		for i := range 200_000 {
			var a [4]byte
			binary.BigEndian.PutUint32(a[:], uint32(i))
			if why, _ := l.take(netip.AddrFrom4(a)); why != 0 {
				drop++
			}
		}
		if got := len(l.perClient.taken); got > mostClients || got < mostClients*9/10 {
			t.Errorf("%d clients are known, want at most %d", got, mostClients)
		}
		if drop == 0 || drop == 200_000 {
			t.Errorf("%d of 200000 were refused", drop)
		}
		time.Sleep(time.Minute)
		for i := range 1000 {
			if why, _ := l.take(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)})); why != 0 {
				t.Fatal("a newcomer is refused after the storm")
			}
		}
		if got := len(l.perClient.taken); got > 1000 {
			t.Errorf("%d clients are known after a quiet minute", got)
		}
	})
}

func TestManyAtOnce(t *testing.T) {
	l := New(Config{
		Total: Rate{PerSecond: 1e-3, Burst: 1000}, PerClient: Rate{PerSecond: 1e-3, Burst: 100},
		Concurrent: 1000, ConcurrentPerClient: 1000,
	}, "r", nil)
	h := l.Wrap(ok, peer)
	var passed atomic.Int64
	var asking sync.WaitGroup
	for i := range 20 {
		asking.Go(func() {
			client := netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}), 1).String()
			passed.Add(int64(pass(h, client, 200)))
		})
	}
	asking.Wait()
	if passed.Load() != 1000 {
		t.Errorf("%d passed, want 1000: a race", passed.Load())
	}
}

// The edge must not hide what the server's own ResponseWriter can do.
func TestWriterIsPassedOn(t *testing.T) {
	name := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(name, []byte("file"), 0o644); err != nil {
		t.Fatal(err)
	}
	h := New(Config{Preset: "files"}, "r", nil).Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, ok := w.(io.ReaderFrom); !ok {
			t.Error("no ReadFrom: no sendfile")
		}
		if _, ok := w.(http.Hijacker); !ok {
			t.Error("no Hijack: no upgrade")
		}
		w.Header().Set("Trailer", "X-Sum")
		http.ServeFile(w, r, name)
		_ = http.NewResponseController(w).Flush()
	}), peer)
	server := httptest.NewServer(h)
	defer server.Close()
	answer, err := server.Client().Get(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if body, _ := io.ReadAll(answer.Body); string(body) != "file" {
		t.Errorf("got %q", body)
	}
}

func TestValidate(t *testing.T) {
	c := Config{
		Preset: "x", Total: Rate{PerSecond: -1}, PerClient: Rate{Burst: 3}, Concurrent: -1,
	}
	err := c.Validate()
	for _, want := range []string{"preset", "total.perSecond", "perClient.burst", "concurrent"} {
		if err == nil || !strings.Contains(err.Error(), want+":") {
			t.Errorf("no %q in %v", want, err)
		}
	}
	for _, c := range []Config{
		{Total: Rate{PerSecond: math.NaN()}}, {Total: Rate{PerSecond: 1e-9}}, {Total: Rate{PerSecond: 1, Burst: 1 << 30}},
	} {
		if c.Validate() == nil {
			t.Errorf("accepted %+v", c)
		}
	}
}

func FuzzConfig(f *testing.F) {
	f.Add("preset: files\ntotal: {perSecond: 500, burst: 1}\n")
	f.Fuzz(func(t *testing.T, text string) {
		var c Config
		if yaml.UnmarshalStrict([]byte(text), &c) != nil || c.Validate() != nil {
			return
		}
		l := New(c, "r", nil)
		if why, wait := l.take(netip.Addr{}); why != 0 || wait != 0 {
			t.Errorf("the first request of all was refused: %v %v", why, wait)
		}
	})
}

func BenchmarkLimit(b *testing.B) {
	l := New(Config{
		Total: Rate{PerSecond: 1e9, Burst: 1e6}, PerClient: Rate{PerSecond: 1e9, Burst: 1e6}, Concurrent: 10,
		ConcurrentPerClient: 10,
	}, "r", nil)
	h := l.Wrap(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), func(*http.Request) netip.Addr {
		return netip.AddrFrom4([4]byte{192, 0, 2, 1})
	})
	r := httptest.NewRequest(http.MethodGet, "/", nil).WithContext(context.Background())
	w := httptest.NewRecorder()
	b.ReportAllocs()
	for b.Loop() {
		h.ServeHTTP(w, r)
	}
}
