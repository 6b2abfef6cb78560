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
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tinkerbell/stack/pkg/artifacts"
	"github.com/tinkerbell/stack/pkg/boot"
	"github.com/tinkerbell/stack/pkg/edge/reply"
	"github.com/tinkerbell/stack/pkg/record"
	"github.com/tinkerbell/stack/pkg/record/recordtest"
)

type exchange = record.Exchange

// here is the client of all tests.
var here = netip.MustParseAddr("127.0.0.1")

// byWay are requests of the same by each way of HTTP/1.1, with what a machine says.
func byWay(target string) map[string]string {
	said := "GET " + target + " HTTP/1.1\r\nHost: h\r\nUser-Agent: iPXE/1.21.1\r\nRange: bytes=7-\r\n"
	return map[string]string{
		"plain": said + "\r\n", "pool": said + "Via: 1.1 a\r\n\r\n", "Transport": said + "Te: trailers\r\n\r\n",
	}
}

// TestRecords has what is recorded of a request, the same on every way.
func TestRecords(t *testing.T) { withAndWithout(t, testRecords) }

func testRecords(t *testing.T, start starter) {
	long := strings.Repeat("x", 100<<10)
	answer := func(status, body string, length int) string {
		return fmt.Sprintf("HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s", status, length, body)
	}
	base := exchange{
		Kind: record.HTTP, Client: here, Code: 200, Name: "/52:54:00:5e:00:01/auto.ipxe",
		Software: "iPXE/1.21.1", Offset: 7, Method: "GET", Route: "r",
	}
	tests := map[string]struct {
		target  string
		answers []string
		want    func(exchange) []exchange
	}{
		"whole": {
			answers: []string{answer("200 OK", "ok", 2)},
			want:    func(x exchange) []exchange { x.Bytes, x.Expected = 2, 2; return []exchange{x} },
		},
		"encoded, with a query": {
			target:  "/52%3A54:00:5e:00:01/auto.ipxe?arch=%41",
			answers: []string{answer("200 OK", "ok", 2)},
			want:    func(x exchange) []exchange { x.Bytes, x.Expected = 2, 2; return []exchange{x} },
		},
		"not there": {
			answers: []string{answer("404 Not Found", "no", 2)},
			want:    func(x exchange) []exchange { x.Code, x.Bytes, x.Expected = 404, 2, 2; return []exchange{x} },
		},
		"long": {
			answers: []string{answer("200 OK", long, len(long))},
			want: func(x exchange) []exchange {
				begun := x
				begun.Outcome, begun.Expected = record.Began, uint64(len(long))
				x.Bytes, x.Expected = begun.Expected, begun.Expected
				return []exchange{begun, x}
			},
		},
		"torn": {
			answers: []string{answer("200 OK", long, len(long)+1)},
			want: func(x exchange) []exchange {
				begun := x
				begun.Outcome, begun.Expected = record.Began, uint64(len(long)+1)
				x.Outcome, x.Reason, x.Bytes, x.Expected = record.Torn, "torn", uint64(len(long)), begun.Expected
				return []exchange{begun, x}
			},
		},
		"no answer": {
			answers: []string{""},
			want: func(x exchange) []exchange {
				x.Outcome, x.Reason, x.Code, x.Bytes = record.NoServer, "error", 502, 69
				return []exchange{x}
			},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if test.target == "" {
				test.target = base.Name
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
				want.Endpoint = netip.MustParseAddrPort(addr)
				if diff := recordtest.Diff(test.want(want), r.log.All()); diff != "" {
					t.Errorf("%s (-want +got):\n%s", way, diff)
				}
			}
		})
	}
}

// TestRecordsClientsThatGo before they have all of an answer, or any of it.
func TestRecordsClientsThatGo(t *testing.T) { withAndWithout(t, testRecordsClientsThatGo) }

func testRecordsClientsThatGo(t *testing.T, start starter) {
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
			told := r.log.Await(t, n)
			close(release)
			got := told[n-1]
			if got.Outcome != record.Torn || got.Reason != "client_gone" || got.Name != "/vmlinuz" || got.Bytes >= 1e9 ||
				early && got.Code != 499 || !early && (got.Expected != 1e9 || told[0].Outcome != record.Began) {
				t.Errorf("%s, early %t: got %+v", way, early, told)
			}
		}
	}
}

// TestRecordsClientsThatStall: who takes nothing of an answer for the route's time is recorded as given up by this
// proxy on every way, not as gone.
func TestRecordsClientsThatStall(t *testing.T) {
	const size = 1 << 30
	name := filepath.Join(t.TempDir(), "vmlinuz")
	if err := os.WriteFile(name, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(name, size); err != nil { // sparse
		t.Fatal(err)
	}
	files := artifacts.New(artifacts.Config{Directory: filepath.Dir(name)})
	defer files.Close()
	url := backend(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", strconv.Itoa(size))
		for range size >> 20 {
			if _, err := w.Write(make([]byte, 1<<20)); err != nil {
				return
			}
		}
	})
	backed, filed := Settings{Pool: pool(url)}, Settings{Handler: files}
	backedTLS, filedTLS := backed, filed
	backedTLS.TLS, filedTLS.TLS = certificate(t, "http/1.1"), certificate(t, "http/1.1")
	for name, test := range map[string]struct {
		settings Settings
		way      string
	}{
		"backend, engine": {backed, "plain"}, "backend, pool": {backed, "pool"}, "backend, Transport": {backed, "Transport"},
		"backend, TLS": {backedTLS, "plain"}, "file": {filed, "plain"}, "file, TLS": {filedTLS, "plain"},
	} {
		t.Run(name, func(t *testing.T) {
			s := test.settings
			s.Stall = 400 * time.Millisecond
			r := start(t, s)
			c := r.talk(t).Conn
			if s.TLS != nil {
				c = tls.Client(c, &tls.Config{InsecureSkipVerify: true})
			}
			if _, err := io.WriteString(c, byWay("/vmlinuz")[test.way]); err != nil {
				t.Fatal(err)
			}
			_, _ = io.ReadFull(c, make([]byte, 1e6))
			if got := r.log.Await(t, 2)[1]; got.Outcome != record.Torn || got.Reason != boot.ReasonOurTimeout {
				t.Errorf("got %+v", got)
			}
		})
	}
}

// TestRecordsRefusals: what no endpoint was asked.
func TestRecordsRefusals(t *testing.T) {
	gate := gateFunc(func(w http.ResponseWriter, r *http.Request) {
		reply.Refuse(w, r, http.StatusForbidden, reply.PermissionDenied, "no such token")
	})
	tests := map[string]struct {
		settings Settings
		method   string
		want     exchange
	}{
		"by a gate": {
			settings: Settings{Pool: pool("127.0.0.1:1"), Gate: gate},
			want:     exchange{Outcome: record.Refused, Code: 403, Bytes: 14, Reason: "no such token"},
		},
		"a tunnel": {
			settings: Settings{Pool: pool("127.0.0.1:1")}, method: http.MethodConnect,
			want: exchange{Outcome: record.Refused, Code: 405, Bytes: 11, Reason: "no tunnels"},
		},
		"nobody listens": {
			settings: Settings{Pool: pool(refused(t))},
			want:     exchange{Outcome: record.NoServer, Code: 502, Bytes: 57, Reason: "refused"},
		},
		"no endpoint": {
			settings: Settings{Pool: pool()},
			want:     exchange{Outcome: record.NoServer, Code: 503, Bytes: 67, Reason: "no_endpoint"},
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
			got := r.log.Await(t, 1)[0]
			if name == "nobody listens" {
				test.want.Endpoint = test.settings.Pool.Status()[0].Address
			}
			test.want.Kind, test.want.Client, test.want.Route, test.want.Method = record.HTTP, here, "r", test.method
			if test.method == http.MethodGet {
				test.want.Name = "/x"
			}
			if diff := recordtest.Diff(test.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// gateFunc is a gate that lets nothing pass.
type gateFunc func(http.ResponseWriter, *http.Request)

func (g gateFunc) Wrap(http.Handler) http.Handler         { return http.HandlerFunc(g) }
func (g gateFunc) Ready() error                           { return nil }
func (g gateFunc) PassesTarget() func(target []byte) bool { return nil }

// TestRecordsFiles: those that the proxy serves itself, over HTTP/1.1, TLS and HTTP/2.
func TestRecordsFiles(t *testing.T) {
	directory := t.TempDir()
	if err := os.WriteFile(filepath.Join(directory, "vmlinuz"), make([]byte, 300<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	files := artifacts.New(artifacts.Config{Directory: directory})
	t.Cleanup(func() { _ = files.Close() })
	certificate := httptest.NewUnstartedServer(nil)
	certificate.StartTLS()
	defer certificate.Close()
	base := exchange{
		Kind: record.HTTP, Client: here, Code: 200, Name: "/vmlinuz", Software: "a", Method: "GET",
		Route: "r",
	}
	const size = 300 << 10
	tests := map[string]struct {
		method, path, ranges string
		want                 func(exchange) []exchange
	}{
		"whole": {want: func(x exchange) []exchange {
			begun := x
			begun.Outcome, begun.Expected, x.Bytes, x.Expected = record.Began, size, size, size
			return []exchange{begun, x}
		}},
		"range": {ranges: "bytes=307000-307099", want: func(x exchange) []exchange {
			x.Code, x.Offset, x.Bytes, x.Expected = 206, 307000, 100, 100
			return []exchange{x}
		}},
		"not satisfiable": {ranges: "bytes=999999-", want: func(x exchange) []exchange {
			x.Code, x.Offset, x.Bytes, x.Expected = 416, 999999, 33, 0
			return []exchange{x}
		}},
		"head": {method: http.MethodHead, want: func(x exchange) []exchange { x.Method = "HEAD"; return []exchange{x} }},
		"not there": {path: "/initramfs", want: func(x exchange) []exchange {
			x.Name, x.Code, x.Bytes = "/initramfs", 404, 13
			return []exchange{x}
		}},
		"not for writing": {method: http.MethodPut, want: func(x exchange) []exchange {
			x.Method, x.Code, x.Bytes = "PUT", 405, 18
			return []exchange{x}
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
					test.path = base.Name
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
				if diff := recordtest.Diff(want, r.log.Await(t, len(want))); diff != "" {
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

// TestRecordsTornFiles: a machine that goes in the midst of a file, and a file that becomes shorter meanwhile.
func TestRecordsTornFiles(t *testing.T) {
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
			told := r.log.Await(t, 2)
			if got := told[1]; told[0].Outcome != record.Began || got.Outcome != record.Torn || got.Reason != reason ||
				got.Expected != size || got.Bytes == 0 || got.Bytes >= size {
				t.Errorf("got %+v", told)
			}
		})
	}
}

// TestRecordsWhatWaits: a request whose endpoint does not answer is recorded once while it waits, its long answer when it
// begins, with the time of its beginning, and then from time to time how far it got.
func TestRecordsWhatWaits(t *testing.T) {
	answer := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		<-answer
		w.Header().Set("Content-Length", strconv.Itoa(2*record.LongAnswer))
		_, _ = w.Write(make([]byte, record.LongAnswer))
		_ = http.NewResponseController(w).Flush()
		<-answer
		_, _ = w.Write(make([]byte, record.LongAnswer))
	}))
	defer server.Close()
	r := start(t, Settings{Pool: pool(server.URL)})
	r.log.Under = true
	c := r.talk(t)
	if _, err := io.WriteString(c.Conn, "GET /image HTTP/1.1\r\nHost: h\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	waits := r.log.Await(t, 1)[0]
	if waits.Outcome != record.Began || waits.Code != 0 || !waits.Endpoint.IsValid() {
		t.Errorf("while it waits: %+v", waits)
	}
	answer <- struct{}{}
	begun := r.log.Await(t, 2)[1]
	if begun.Outcome != record.Began || begun.Code != 200 || begun.Expected != 2*record.LongAnswer {
		t.Errorf("when it is answered: %+v", begun)
	}
	far := r.log.Await(t, 3)[2]
	if far.Outcome != record.Began || far.Bytes != record.LongAnswer {
		t.Errorf("after a while: %+v", far)
	}
	close(answer)
	_, _ = io.CopyN(io.Discard, c.Reader, 2*record.LongAnswer)
	if end := r.log.Await(t, 4)[3]; end.Outcome != record.Done || end.Bytes != 2*record.LongAnswer {
		t.Errorf("at its end: %+v", end)
	}
}

// TestRecordsCalls: a gRPC call begins and ends, with its status and message; a gate refuses one; its endpoint goes.
func TestRecordsCalls(t *testing.T) {
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
	base := exchange{Kind: record.Stream, Client: here, Name: method, Software: "grpc-go/1.76", Route: "r"}
	begun := base
	begun.Outcome = record.Began
	call := func(t *testing.T, r running) *http.Response {
		r.speakH2C(t)
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, r.url+method, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Content-Type", "application/grpc")
		request.Header.Set("User-Agent", base.Software)
		response, err := r.http.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		return response
	}
	t.Run("ends", func(t *testing.T) {
		r := start(t, Settings{GRPC: true, Pool: pool(url)})
		response := call(t, r)
		if diff := recordtest.Diff([]exchange{begun}, r.log.Await(t, 1)); diff != "" {
			t.Errorf("while it goes on (-want +got):\n%s", diff)
		}
		close(held)
		_, _ = io.Copy(io.Discard, response.Body)
		_ = response.Body.Close()
		want := base
		want.Code, want.Message, want.Bytes = 7, "no workflow for worker", 7
		want.Endpoint = netip.MustParseAddrPort(strings.TrimPrefix(url, "http://"))
		if diff := recordtest.Diff(want, r.log.Await(t, 2)[1]); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
	t.Run("is refused", func(t *testing.T) {
		r := start(t, Settings{GRPC: true, Pool: pool(url), Gate: gateFunc(func(w http.ResponseWriter, r *http.Request) {
			reply.Refuse(w, r, http.StatusUnauthorized, reply.Unauthenticated, "no token")
		})})
		_ = call(t, r).Body.Close()
		want := base
		want.Outcome, want.Code, want.Message, want.Reason = record.Refused, 16, "no token", "no token"
		if diff := recordtest.Diff([]exchange{begun, want}, r.log.Await(t, 2)); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
	t.Run("has no endpoint", func(t *testing.T) {
		gone := refused(t)
		r := start(t, Settings{GRPC: true, Pool: pool(gone)})
		_ = call(t, r).Body.Close()
		want := base
		want.Outcome, want.Code, want.Endpoint, want.Reason = record.NoServer, 14, netip.MustParseAddrPort(gone), "refused"
		want.Message = "stack-proxy: route r: the backend refused the connection"
		if diff := recordtest.Diff([]exchange{begun, want}, r.log.Await(t, 2)); diff != "" {
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
		got := r.log.Await(t, 2)[1]
		if got.Outcome != record.Torn || got.Reason == "" || got.Kind != record.Stream {
			t.Errorf("got %+v", got)
		}
	})
}

// TestRecordsTheClientBehindAProxy that is trusted.
func TestRecordsTheClientBehindAProxy(t *testing.T) {
	r := start(t, Settings{
		Pool: pool(backend(t, func(http.ResponseWriter, *http.Request) {})), Trusted: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")},
	})
	r.get(t, "/", "X-Forwarded-For", "192.0.2.7")
	if got := r.log.Await(t, 1)[0].Client; got != netip.MustParseAddr("192.0.2.7") {
		t.Errorf("got %s", got)
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
	}
}

// TestRecordsTheKernelsTimeout as ours: TCP_USER_TIMEOUT may end an answer before the stall timer does.
func TestRecordsTheKernelsTimeout(t *testing.T) {
	for failure, want := range map[error]string{
		syscall.ETIMEDOUT: boot.ReasonOurTimeout, syscall.ECONNRESET: boot.ReasonClientGone,
	} {
		r := response{request: httptest.NewRequest(http.MethodGet, "/", http.NoBody)}
		r.draft.sendError = os.NewSyscallError("sendfile", failure)
		if got := r.notTaken(); got != want {
			t.Errorf("%v: got %s, want %s", failure, got, want)
		}
	}
}

// Where a client is sent by an endpoint is recorded: a machine that follows no redirect asks no more.
func TestRedirectIsRecorded(t *testing.T) { withAndWithout(t, testRedirectIsRecorded) }

func testRedirectIsRecorded(t *testing.T, start starter) {
	r := start(t, Settings{Pool: pool(backend(t, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "https://files.example/vmlinuz", http.StatusMovedPermanently)
	}))})
	r.talk(t).ask(t, plainGet)
	if x := r.log.Await(t, 1)[0]; x.Code != http.StatusMovedPermanently || x.Message != "https://files.example/vmlinuz" {
		t.Errorf("recorded %+v", x)
	}
}
