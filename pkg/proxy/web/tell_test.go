package web

import (
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tinkerbell/stack/pkg/artifacts"
	"github.com/tinkerbell/stack/pkg/boot"
	"github.com/tinkerbell/stack/pkg/edge/reply"
)

// tales are the first events that a front tells. It allocates nothing for one.
type tales struct {
	mu     sync.Mutex
	n      int
	events [64]boot.Event
}

func (t *tales) add(e *boot.Event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.n < len(t.events) {
		t.events[t.n] = *e
		t.n++
	}
}

func (t *tales) all() []tale {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := make([]tale, t.n)
	for i := range all {
		all[i] = taleOf(&t.events[i])
	}
	return all
}

// await waits for the nth event and returns all.
func (t *tales) await(tb *testing.T, n int) []tale {
	tb.Helper()
	eventually(tb, fmt.Sprintf("%d events", n), func() bool { return len(t.all()) >= n })
	return t.all()
}

// tale is an event for comparison.
type tale struct {
	Kind                                                boot.Kind
	Outcome                                             boot.Outcome
	Client                                              netip.Addr
	Endpoint                                            string
	Status                                              uint16
	Bytes, Expected, Offset                             uint64
	Path, Agent, Message, Method, Place, Reason, Others string
}

func taleOf(e *boot.Event) tale {
	text := func(f boot.Field) string { return string(e.Text(f)) }
	t := tale{
		Kind: e.Kind, Outcome: e.Outcome, Client: boot.Addr(e.Client), Status: e.Status, Bytes: e.Bytes,
		Expected: e.Expected, Offset: e.Offset, Path: text(boot.File), Agent: text(boot.Agent), Message: text(boot.Message),
		Method: text(boot.Method), Place: text(boot.Place), Reason: text(boot.Reason),
	}
	if boot.Addr(e.Endpoint).IsValid() {
		t.Endpoint = netip.AddrPortFrom(boot.Addr(e.Endpoint), e.Port).String()
	}
	if e.Route == 0 {
		t.Others += "no port; "
	}
	if now := time.Now().UnixNano(); e.At > now || now-e.At > int64(time.Hour) || e.Took < 0 || e.Took > time.Hour {
		t.Others += fmt.Sprintf("at %d, took %v; ", e.At, e.Took)
	}
	if (e.Outcome == boot.Began) != (e.Took == 0) {
		t.Others += "time; "
	}
	return t
}

// String is what the ways have to agree on.
func (t tale) String() string {
	return fmt.Sprintf("%d %d %s %d %d/%d %s %s %s%s", t.Kind, t.Outcome, t.Endpoint, t.Status, t.Bytes, t.Expected, t.Method,
		t.Path, t.Reason, t.Others)
}

var here = netip.MustParseAddr("127.0.0.1")

// byWay are requests of the same by each way of HTTP/1.1, with what a machine says.
func byWay(target string) map[string]string {
	said := "GET " + target + " HTTP/1.1\r\nHost: h\r\nUser-Agent: iPXE/1.21.1\r\nRange: bytes=7-\r\n"
	return map[string]string{
		"plain": said + "\r\n", "pool": said + "Via: 1.1 a\r\n\r\n", "Transport": said + "Te: trailers\r\n\r\n",
	}
}

// TestTells: what is told of a request is the same on every way.
func TestTells(t *testing.T) { withAndWithout(t, testTells) }

func testTells(t *testing.T, start starter) {
	long := strings.Repeat("x", 100<<10)
	answer := func(status, body string, length int) string {
		return fmt.Sprintf("HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s", status, length, body)
	}
	base := tale{
		Kind: boot.HTTP, Outcome: boot.Done, Client: here, Status: 200, Path: "/52:54:00:5e:00:01/auto.ipxe",
		Agent: "iPXE/1.21.1", Offset: 7, Method: "GET", Place: "r",
	}
	tests := map[string]struct {
		target  string
		answers []string
		want    func(tale) []tale
	}{
		"whole": {
			answers: []string{answer("200 OK", "ok", 2)},
			want:    func(e tale) []tale { e.Bytes, e.Expected = 2, 2; return []tale{e} },
		},
		"encoded, with a query": {
			target:  "/52%3A54:00:5e:00:01/auto.ipxe?arch=%41",
			answers: []string{answer("200 OK", "ok", 2)},
			want:    func(e tale) []tale { e.Bytes, e.Expected = 2, 2; return []tale{e} },
		},
		"not there": {
			answers: []string{answer("404 Not Found", "no", 2)},
			want:    func(e tale) []tale { e.Status, e.Bytes, e.Expected = 404, 2, 2; return []tale{e} },
		},
		"long": {
			answers: []string{answer("200 OK", long, len(long))},
			want: func(e tale) []tale {
				begun := e
				begun.Outcome, begun.Expected = boot.Began, uint64(len(long))
				e.Bytes, e.Expected = begun.Expected, begun.Expected
				return []tale{begun, e}
			},
		},
		"torn": {
			answers: []string{answer("200 OK", long, len(long)+1)},
			want: func(e tale) []tale {
				begun := e
				begun.Outcome, begun.Expected = boot.Began, uint64(len(long)+1)
				e.Outcome, e.Reason, e.Bytes, e.Expected = boot.Torn, "torn", uint64(len(long)), begun.Expected
				return []tale{begun, e}
			},
		},
		"no answer": {
			answers: []string{""},
			want: func(e tale) []tale {
				e.Outcome, e.Reason, e.Status, e.Bytes = boot.NoServer, "error", 502, 69
				return []tale{e}
			},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if test.target == "" {
				test.target = base.Path
			}
			for way, request := range byWay(test.target) {
				addr, _ := raw(t, test.answers...)
				r := start(t, Settings{Pool: pool(addr)})
				c := r.talk(t)
				if _, err := io.WriteString(c.Conn, request); err != nil {
					t.Fatal(err)
				}
				if response, err := http.ReadResponse(c.Reader, nil); err == nil {
					_, _ = io.Copy(io.Discard, response.Body)
				}
				_ = c.Conn.Close()
				if err := r.stop(); err != nil {
					t.Error(err)
				}
				want := base
				want.Endpoint = addr
				if diff := cmp.Diff(test.want(want), r.told.all(), cmp.Comparer(sameAddr)); diff != "" {
					t.Errorf("%s (-want +got):\n%s", way, diff)
				}
			}
		})
	}
}

func sameAddr(a, b netip.Addr) bool { return a == b }

// TestTellsOfClientsThatGo before they have all of an answer, or any of it.
func TestTellsOfClientsThatGo(t *testing.T) { withAndWithout(t, testTellsOfClientsThatGo) }

func testTellsOfClientsThatGo(t *testing.T, start starter) {
	for way, request := range byWay("/vmlinuz") {
		for _, early := range []bool{true, false} {
			came, release := make(chan struct{}), make(chan struct{})
			url := backend(t, func(w http.ResponseWriter, _ *http.Request) {
				if early {
					close(came)
					<-release
					return
				}
				w.Header().Set("Content-Length", "1000000000")
				for range 1000 {
					if _, err := w.Write(make([]byte, 1e6)); err != nil {
						return
					}
				}
			})
			r := start(t, Settings{Pool: pool(url)})
			c := r.talk(t)
			if _, err := io.WriteString(c.Conn, request); err != nil {
				t.Fatal(err)
			}
			n := 1
			if early {
				<-came
			} else {
				_, _ = io.ReadFull(c.Conn, make([]byte, 1e6))
				n = 2
			}
			c.leave()
			told := r.told.await(t, n)
			close(release)
			got := told[n-1]
			if got.Outcome != boot.Torn || got.Reason != "client_gone" || got.Path != "/vmlinuz" || got.Bytes >= 1e9 ||
				early && got.Status != 499 || !early && (got.Expected != 1e9 || told[0].Outcome != boot.Began) {
				t.Errorf("%s, early %t: got %+v", way, early, told)
			}
		}
	}
}

// TestTellsOfRefusals: what no endpoint was asked.
func TestTellsOfRefusals(t *testing.T) {
	gate := gateFunc(func(w http.ResponseWriter, r *http.Request) {
		reply.Refuse(w, r, http.StatusForbidden, reply.PermissionDenied, "no such token")
	})
	tests := map[string]struct {
		settings Settings
		method   string
		want     tale
	}{
		"by a gate": {
			settings: Settings{Pool: pool("127.0.0.1:1"), Gate: gate},
			want:     tale{Outcome: boot.Refused, Status: 403, Bytes: 14, Reason: "no such token"},
		},
		"a tunnel": {
			settings: Settings{Pool: pool("127.0.0.1:1")}, method: http.MethodConnect,
			want: tale{Outcome: boot.Refused, Status: 405, Bytes: 11, Reason: "no tunnels"},
		},
		"nobody listens": {
			settings: Settings{Pool: pool(refused(t))},
			want:     tale{Outcome: boot.NoServer, Status: 502, Bytes: 57, Reason: "refused"},
		},
		"no endpoint": {
			settings: Settings{Pool: pool()},
			want:     tale{Outcome: boot.NoServer, Status: 503, Bytes: 67, Reason: "no_endpoint"},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			r := start(t, test.settings)
			if test.method == "" {
				test.method = http.MethodGet
			}
			c := r.talk(t)
			target := "/x"
			if test.method == http.MethodConnect {
				target = "h:1"
			}
			if _, err := fmt.Fprintf(c.Conn, "%s %s HTTP/1.1\r\nHost: h:1\r\n\r\n", test.method, target); err != nil {
				t.Fatal(err)
			}
			got := r.told.await(t, 1)[0]
			if name == "nobody listens" {
				test.want.Endpoint = test.settings.Pool.Status()[0].Address.String()
			}
			test.want.Kind, test.want.Client, test.want.Place, test.want.Method = boot.HTTP, here, "r", test.method
			if test.method == http.MethodGet {
				test.want.Path = "/x"
			}
			if diff := cmp.Diff(test.want, got, cmp.Comparer(sameAddr)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// gateFunc is a gate that lets nothing pass.
type gateFunc func(http.ResponseWriter, *http.Request)

func (g gateFunc) Wrap(http.Handler) http.Handler    { return http.HandlerFunc(g) }
func (g gateFunc) Ready() error                      { return nil }
func (g gateFunc) Passing() func(target []byte) bool { return nil }

// TestTellsOfFiles: those that the proxy serves itself, over HTTP/1.1, TLS and HTTP/2.
func TestTellsOfFiles(t *testing.T) {
	directory := t.TempDir()
	if err := os.WriteFile(filepath.Join(directory, "vmlinuz"), make([]byte, 300<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	files := artifacts.New(artifacts.Config{Directory: directory})
	t.Cleanup(func() { _ = files.Close() })
	certificate := httptest.NewUnstartedServer(nil)
	certificate.StartTLS()
	defer certificate.Close()
	base := tale{
		Kind: boot.HTTP, Outcome: boot.Done, Client: here, Status: 200, Path: "/vmlinuz", Agent: "a", Method: "GET",
		Place: "r",
	}
	const size = 300 << 10
	tests := map[string]struct {
		method, path, ranges string
		want                 func(tale) []tale
	}{
		"whole": {want: func(e tale) []tale {
			begun := e
			begun.Outcome, begun.Expected, e.Bytes, e.Expected = boot.Began, size, size, size
			return []tale{begun, e}
		}},
		"range": {ranges: "bytes=307000-307099", want: func(e tale) []tale {
			e.Status, e.Offset, e.Bytes, e.Expected = 206, 307000, 100, 100
			return []tale{e}
		}},
		"not satisfiable": {ranges: "bytes=999999-", want: func(e tale) []tale {
			e.Status, e.Offset, e.Bytes, e.Expected = 416, 999999, 33, 0
			return []tale{e}
		}},
		"head": {method: http.MethodHead, want: func(e tale) []tale { e.Method = "HEAD"; return []tale{e} }},
		"not there": {path: "/initramfs", want: func(e tale) []tale {
			e.Path, e.Status, e.Bytes = "/initramfs", 404, 13
			return []tale{e}
		}},
		"not for writing": {method: http.MethodPut, want: func(e tale) []tale {
			e.Method, e.Status, e.Bytes = "PUT", 405, 18
			return []tale{e}
		}},
	}
	for _, protocol := range []string{"HTTP/1.1", "TLS", "HTTP/2"} {
		for name, test := range tests {
			t.Run(protocol+" "+name, func(t *testing.T) {
				s := Settings{Handler: files}
				transport, scheme := &http.Transport{}, "http://"
				if protocol != "HTTP/1.1" {
					s.TLS, scheme = &tls.Config{Certificates: certificate.TLS.Certificates}, "https://"
					s.TLS.NextProtos = []string{"h2", "http/1.1"}
					transport.TLSClientConfig = &tls.Config{InsecureSkipVerify: true}
					transport.ForceAttemptHTTP2 = protocol == "HTTP/2"
				}
				defer transport.CloseIdleConnections()
				r := start(t, s)
				if test.method == "" {
					test.method = http.MethodGet
				}
				if test.path == "" {
					test.path = base.Path
				}
				request, err := http.NewRequestWithContext(t.Context(), test.method, scheme+r.Addr().String()+test.path, nil)
				if err != nil {
					t.Fatal(err)
				}
				request.Header.Set("User-Agent", "a")
				if test.ranges != "" {
					request.Header.Set("Range", test.ranges)
				}
				response, err := transport.RoundTrip(request)
				if err != nil {
					t.Fatal(err)
				}
				_, _ = io.Copy(io.Discard, response.Body)
				_ = response.Body.Close()
				if want := 1 + b2i(protocol == "HTTP/2"); response.ProtoMajor != want {
					t.Fatalf("the test speaks %s", response.Proto)
				}
				want := test.want(base)
				if diff := cmp.Diff(want, r.told.await(t, len(want)), cmp.Comparer(sameAddr)); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
			})
		}
	}
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

// TestTellsOfTornFiles: a machine that goes in the midst of a file, and a file that becomes shorter meanwhile.
func TestTellsOfTornFiles(t *testing.T) {
	directory := t.TempDir()
	name := filepath.Join(directory, "image")
	const size = 64 << 20
	for reason, tear := range map[string]func(net.Conn) error{
		"client_gone": func(c net.Conn) error { return c.Close() },
		"torn": func(c net.Conn) error {
			if err := os.Truncate(name, 8<<20); err != nil {
				return err
			}
			_, err := io.Copy(io.Discard, c)
			return err
		},
	} {
		t.Run(reason, func(t *testing.T) {
			if err := os.WriteFile(name, make([]byte, size), 0o600); err != nil {
				t.Fatal(err)
			}
			files := artifacts.New(artifacts.Config{Directory: directory})
			defer files.Close()
			r := start(t, Settings{Handler: files})
			c := r.talk(t)
			if _, err := io.WriteString(c.Conn, "GET /image HTTP/1.1\r\nHost: h\r\n\r\n"); err != nil {
				t.Fatal(err)
			}
			_, _ = io.ReadFull(c.Conn, make([]byte, 1<<20))
			if err := tear(c.Conn); err != nil {
				t.Fatal(err)
			}
			told := r.told.await(t, 2)
			if got := told[1]; told[0].Outcome != boot.Began || got.Outcome != boot.Torn || got.Reason != reason ||
				got.Expected != size || got.Bytes == 0 || got.Bytes >= size {
				t.Errorf("got %+v", told)
			}
		})
	}
}

// TestTellsOfCalls: a gRPC call begins and ends, with its status and message; a gate refuses one; its endpoint goes.
func TestTellsOfCalls(t *testing.T) {
	const method = "/proto.WorkflowService/GetWorkflowContexts"
	held := make(chan struct{})
	url := h2c(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/grpc")
		w.Header().Set("Trailer", "Grpc-Status, Grpc-Message")
		w.WriteHeader(http.StatusOK)
		_, _ = io.WriteString(w, "message")
		_ = http.NewResponseController(w).Flush()
		<-held
		w.Header().Set("Grpc-Status", "7")
		w.Header().Set("Grpc-Message", "no workflow for%20worker")
	})
	base := tale{Kind: boot.Stream, Client: here, Path: method, Agent: "grpc-go/1.76", Place: "r"}
	begun := base
	begun.Outcome = boot.Began
	call := func(t *testing.T, r running) *http.Response {
		r.speakH2C(t)
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, r.url+method, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Content-Type", "application/grpc")
		request.Header.Set("User-Agent", base.Agent)
		response, err := r.http.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		return response
	}
	t.Run("ends", func(t *testing.T) {
		r := start(t, Settings{GRPC: true, Pool: pool(url)})
		response := call(t, r)
		if diff := cmp.Diff([]tale{begun}, r.told.await(t, 1), cmp.Comparer(sameAddr)); diff != "" {
			t.Errorf("while it goes on (-want +got):\n%s", diff)
		}
		close(held)
		_, _ = io.Copy(io.Discard, response.Body)
		_ = response.Body.Close()
		want := base
		want.Outcome, want.Status, want.Message, want.Bytes = boot.Done, 7, "no workflow for worker", 7
		want.Endpoint = strings.TrimPrefix(url, "http://")
		if diff := cmp.Diff(want, r.told.await(t, 2)[1], cmp.Comparer(sameAddr)); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
	t.Run("is refused", func(t *testing.T) {
		r := start(t, Settings{GRPC: true, Pool: pool(url), Gate: gateFunc(func(w http.ResponseWriter, r *http.Request) {
			reply.Refuse(w, r, http.StatusUnauthorized, reply.Unauthenticated, "no token")
		})})
		_ = call(t, r).Body.Close()
		want := base
		want.Outcome, want.Status, want.Message, want.Reason = boot.Refused, 16, "no token", "no token"
		if diff := cmp.Diff([]tale{begun, want}, r.told.await(t, 2), cmp.Comparer(sameAddr)); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
	t.Run("has no endpoint", func(t *testing.T) {
		gone := refused(t)
		r := start(t, Settings{GRPC: true, Pool: pool(gone)})
		_ = call(t, r).Body.Close()
		want := base
		want.Outcome, want.Status, want.Endpoint, want.Reason = boot.NoServer, 14, gone, "refused"
		want.Message = "stack-proxy: route r: the backend refused the connection"
		if diff := cmp.Diff([]tale{begun, want}, r.told.await(t, 2), cmp.Comparer(sameAddr)); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
	t.Run("is torn", func(t *testing.T) {
		server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/grpc")
			w.WriteHeader(http.StatusOK)
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}))
		server.Config.Protocols = new(http.Protocols)
		server.Config.Protocols.SetUnencryptedHTTP2(true)
		server.Start()
		defer server.Close()
		r := start(t, Settings{GRPC: true, Pool: pool(server.URL)})
		_ = call(t, r).Body.Close()
		got := r.told.await(t, 2)[1]
		if got.Outcome != boot.Torn || got.Reason == "" || got.Kind != boot.Stream {
			t.Errorf("got %+v", got)
		}
	})
}

// TestTellsOfTheClientBehindAProxy that is trusted.
func TestTellsOfTheClientBehindAProxy(t *testing.T) {
	r := start(t, Settings{
		Pool: pool(backend(t, func(http.ResponseWriter, *http.Request) {})), Trusted: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")},
	})
	r.get(t, "/", "X-Forwarded-For", "192.0.2.7")
	if got := r.told.await(t, 1)[0].Client; got != netip.MustParseAddr("192.0.2.7") {
		t.Errorf("got %s", got)
	}
}

// TestBudgetOfAClient bounds what is told of its ordinary requests, on every way, and of nothing else.
func TestBudgetOfAClient(t *testing.T) {
	budgets := boot.NewBudgets()
	for budgets.Allow(here, time.Now().Add(time.Hour).UnixNano(), 200, 0) { // all of the next hour's
	}
	url := backend(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/there" {
			http.NotFound(w, r)
		}
	})
	r := startBy(t, Config{
		Listen: netip.MustParseAddrPort("127.0.0.1:0"), Loops: loops(t), Budgets: budgets, Settings: Settings{Pool: pool(url)},
	})
	for _, path := range []string{"/there", "/gone"} {
		for _, request := range byWay(path) {
			c := r.talk(t)
			if _, err := io.WriteString(c.Conn, request); err != nil {
				t.Fatal(err)
			}
			if _, err := http.ReadResponse(c.Reader, nil); err != nil {
				t.Fatal(err)
			}
			_ = c.Conn.Close()
		}
	}
	for _, told := range r.told.await(t, 3) {
		if told.Status != http.StatusNotFound {
			t.Errorf("told of %+v", told)
		}
	}
	if budgets.Spared() != 3+1 { // and the one that the test found it empty by
		t.Errorf("%d spared", budgets.Spared())
	}
}

// TestHostileTexts of a request are cut, and keep the rest of the event whole.
func TestHostileTexts(t *testing.T) {
	r := start(t, Settings{Pool: pool(backend(t, func(http.ResponseWriter, *http.Request) {}))})
	path := "/" + strings.Repeat("%0a%1b%ff%3Cscript%3E", 500)
	r.get(t, path, "User-Agent", strings.Repeat("<script>", 1000))
	got := r.told.await(t, 1)[0]
	if len(got.Path) != mostPath || len(got.Agent) != mostAgent || got.Method != "GET" || got.Place != "r" {
		t.Errorf("got %d bytes of a path, %d of an agent, %+v", len(got.Path), len(got.Agent), got)
	}
}

func TestOffset(t *testing.T) {
	for text, want := range map[string]uint64{
		"": 0, "bytes=7-": 7, "bytes=100-199": 100, "bytes=-5": 0, "bytes=5-6,9-": 5, "lines=4-": 0, "bytes=": 0,
		"bytes=x": 0, "bytes=99999999999999999999999999999-": 999999999999999999,
	} {
		if got := offset(text); got != want {
			t.Errorf("%q: got %d, want %d", text, got, want)
		}
		if got := offset([]byte(text)); got != want {
			t.Errorf("%q, as bytes: got %d, want %d", text, got, want)
		}
	}
}
