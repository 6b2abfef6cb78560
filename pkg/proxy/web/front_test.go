package web

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"

	"github.com/tinkerbell/stack/pkg/endpoint"
	"github.com/tinkerbell/stack/pkg/proxy/loop"
	"github.com/tinkerbell/stack/pkg/record/recordtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type running struct {
	*Front
	*Metrics
	stop func() error
	url  string
	http *http.Client
	log  *recordtest.Log
}

func start(t *testing.T, s Settings) running { return startLogged(t, s, io.Discard) }

func startLogged(t *testing.T, s Settings, log io.Writer) running {
	t.Helper()
	return startOn(t, s, log, loops(t))
}

// loops run until the test's fronts have ended.
func loops(t *testing.T) *loop.Group {
	t.Helper()
	g := loop.NewGroup(2)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- g.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return g
}

// starter starts a front.
type starter func(t *testing.T, s Settings, log ...io.Writer) running

// withAndWithout runs a test with loops and without.
func withAndWithout(t *testing.T, test func(*testing.T, starter)) {
	t.Helper()
	logTo := func(log []io.Writer) io.Writer { return io.MultiWriter(log...) }
	t.Run("loops", func(t *testing.T) {
		test(t, func(t *testing.T, s Settings, log ...io.Writer) running { return startLogged(t, s, logTo(log)) })
	})
	t.Run("goroutines", func(t *testing.T) {
		test(t, func(t *testing.T, s Settings, log ...io.Writer) running { return startOn(t, s, logTo(log), nil) })
	})
}

func startOn(t *testing.T, s Settings, log io.Writer, loops *loop.Group) running {
	t.Helper()
	return startBy(t, Config{
		Listen: netip.MustParseAddrPort("127.0.0.1:0"), Settings: s, Loops: loops,
		Logger: slog.New(slog.NewTextHandler(log, nil)),
	})
}

// startBy starts a front of the route r.
func startBy(t *testing.T, c Config) running {
	t.Helper()
	if c.Drain == 0 {
		c.Drain = 5 * time.Second
	}
	metrics := NewMetrics(prometheus.NewRegistry())
	log := new(recordtest.Log)
	c.Route, c.Metrics, c.Sink = "r", metrics, log.Add
	f, err := Listen(c)
	if err != nil {
		t.Fatal(err)
	}
	log.Port = f.Addr().Port()
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- f.Serve(ctx) }()
	stop := sync.OnceValue(func() error {
		cancel()
		return <-served
	})
	transport := &http.Transport{}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		if err := stop(); err != nil {
			t.Errorf("Serve() = %v", err)
		}
	})
	return running{f, metrics, stop, "http://" + f.Addr().String(), &http.Client{Transport: transport}, log}
}

func pool(addrs ...string) *endpoint.Pool {
	parsed := make([]netip.AddrPort, len(addrs))
	for i, addr := range addrs {
		parsed[i] = netip.MustParseAddrPort(strings.TrimPrefix(addr, "http://"))
	}
	return endpoint.NewPool(endpoint.Config{Route: "r", Sources: []endpoint.Source{endpoint.Fixed(parsed...)}})
}

func backend(t *testing.T, h http.HandlerFunc) string {
	t.Helper()
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	return server.URL
}

// refused is an address where nobody listens.
func refused(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().String()
}

func (r running) get(t *testing.T, path string, header ...string) (int, string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, r.url+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		request.Header.Add(header[i], header[i+1])
	}
	response, err := r.http.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(body)
}

func TestRequestReachesBackend(t *testing.T) {
	r := start(t, Settings{Pool: pool(backend(t, func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s %s %s xff=%q real=%q agent=%q", r.Method, r.Host, r.RequestURI,
			r.Header["X-Forwarded-For"], r.Header["X-Real-Ip"], r.Header["User-Agent"])
	}))})
	code, body := r.get(t, "/2009-04-04/meta-data?a;b=%zz", "X-Forwarded-For", "192.0.2.66", "X-Forwarded-For", "192.0.2.67",
		"X-Real-IP", "192.0.2.66", "User-Agent", "iPXE/1.21")
	want := fmt.Sprintf(`GET %s /2009-04-04/meta-data?a;b=%%25zz xff=["127.0.0.1"] real=["127.0.0.1"] agent=["iPXE/1.21"]`,
		r.Addr())
	if code != 200 || body != want {
		t.Errorf("got  %d %s\nwant 200 %s", code, body, want)
	}
	r.counts(t, 1)
}

// A hop-by-hop trick: a client must not have the proxy take the address headers off again.
func TestConnectionHeaderCannotRemoveAddress(t *testing.T) {
	r := start(t, Settings{Pool: pool(backend(t, func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, r.Header.Get("X-Forwarded-For"), " ", r.Header.Get("X-Real-IP"))
	}))})
	if _, body := r.get(t, "/", "Connection", "close, X-Forwarded-For, X-Real-IP"); body != "127.0.0.1 127.0.0.1" {
		t.Errorf("backend saw %q", body)
	}
}

func TestErrors(t *testing.T) {
	hung := make(chan struct{})
	slow := backend(t, func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-hung:
		case <-r.Context().Done():
		}
	})
	t.Cleanup(func() { close(hung) })
	broken := backend(t, func(w http.ResponseWriter, _ *http.Request) {
		conn, _, _ := http.NewResponseController(w).Hijack()
		_ = conn.Close()
	})
	tests := map[string]struct {
		pool *endpoint.Pool
		code int
		text string
	}{
		"refused":     {pool(refused(t)), 502, "route r: the backend refused"},
		"no endpoint": {pool(), 503, "route r: the backend's name resolves to nothing"},
		"timeout":     {pool(slow), 504, "route r: the backend did not answer in time"},
		"broken":      {pool(broken), 502, "route r: the backend broke the connection"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			s := Settings{Pool: test.pool}
			if name == "timeout" {
				s.Response = 100 * time.Millisecond
			}
			r := start(t, s)
			code, body := r.get(t, "/")
			if code != test.code || !strings.Contains(body, test.text) {
				t.Errorf("got %d %q, want %d %q", code, body, test.code, test.text)
			}
			if n := testutil.ToFloat64(r.retries.WithLabelValues("r")); n != 0 {
				t.Errorf("%v requests were given to another endpoint, and there is none", n)
			}
		})
	}
}

// The body of a POST is sent once, to the endpoint that takes the connection.
func TestRetryKeepsBody(t *testing.T) {
	alive := backend(t, func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) })
	r := start(t, Settings{Pool: pool(refused(t), alive, refused(t))})
	for range 10 {
		response, err := r.http.Post(r.url, "text/plain", struct{ io.Reader }{strings.NewReader("hello")})
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(response.Body)
		_ = response.Body.Close()
		if string(body) != "hello" {
			t.Fatalf("got %d %q", response.StatusCode, body)
		}
	}
	if testutil.ToFloat64(r.retries.WithLabelValues("r")) == 0 {
		t.Error("no retry was counted")
	}
}

func TestLoop(t *testing.T) {
	var r running
	r = start(t, Settings{Pool: pool(backend(t, func(w http.ResponseWriter, in *http.Request) {
		again, _ := http.NewRequestWithContext(in.Context(), http.MethodGet, r.url, nil)
		again.Header = in.Header
		response, err := r.http.Do(again)
		if err != nil {
			return
		}
		defer response.Body.Close()
		w.WriteHeader(response.StatusCode)
		_, _ = io.Copy(w, response.Body)
	}))})
	if code, body := r.get(t, "/"); code != http.StatusLoopDetected {
		t.Errorf("got %d %q", code, body)
	}
}

func TestUpgrade(t *testing.T) {
	r := start(t, Settings{Pool: pool(backend(t, func(w http.ResponseWriter, _ *http.Request) {
		conn, buffered, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer conn.Close()
		_, _ = conn.Write([]byte("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n"))
		line, _ := buffered.ReadString('\n')
		_, _ = conn.Write([]byte(strings.ToUpper(line)))
	}))})
	conn, err := net.Dial("tcp", r.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, _ = conn.Write([]byte("GET / HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n"))
	reader := bufio.NewReader(conn)
	response, err := http.ReadResponse(reader, nil)
	if err != nil || response.StatusCode != 101 {
		t.Fatalf("got %v, %v", response, err)
	}
	_, _ = conn.Write([]byte("hello\n"))
	if line, err := reader.ReadString('\n'); line != "HELLO\n" {
		t.Errorf("got %q, %v", line, err)
	}
	_ = conn.Close()
	if err := r.stop(); err != nil {
		t.Error(err)
	}
	// It ends with its connection, of which nobody waits for more than the end.
	eventually(t, "a request with code 101 is counted", func() bool {
		return testutil.ToFloat64(r.requests.WithLabelValues("r", "101")) == 1
	})
}

// A response that breaks off must look broken to the client, not complete.
func TestTornResponse(t *testing.T) {
	r := start(t, Settings{Pool: pool(backend(t, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(bytes.Repeat([]byte("x"), 64<<10))
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}))})
	response, err := r.http.Get(r.url)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if n, err := io.Copy(io.Discard, response.Body); err == nil {
		t.Errorf("got %d bytes and a clean end", n)
	}
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	if n := testutil.ToFloat64(r.failures.WithLabelValues("r", "torn")); n != 1 {
		t.Errorf("counted %v torn responses", n)
	}
}

func TestDrainFinishesRequests(t *testing.T) {
	begun, finish := make(chan struct{}), make(chan struct{})
	r := start(t, Settings{Pool: pool(backend(t, func(w http.ResponseWriter, _ *http.Request) {
		close(begun)
		<-finish
		_, _ = w.Write([]byte("done"))
	}))})
	answer := make(chan string)
	go func() {
		response, err := r.http.Get(r.url)
		if err != nil {
			answer <- err.Error()
			return
		}
		defer response.Body.Close()
		body, _ := io.ReadAll(response.Body)
		answer <- string(body)
	}()
	<-begun
	stopped := make(chan error, 1)
	go func() { stopped <- r.stop() }()
	for {
		conn, err := net.Dial("tcp", r.Addr().String())
		if errors.Is(err, syscall.ECONNREFUSED) {
			break
		}
		if err == nil {
			_ = conn.Close()
		}
		time.Sleep(time.Millisecond)
	}
	close(finish)
	if got := <-answer; got != "done" {
		t.Errorf("the request under way got %q", got)
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}

// Reloads under load: every request is answered, by the old settings or the new.
func TestUpdateUnderLoad(t *testing.T) {
	text := func(s string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, s) }
	}
	a, b := pool(backend(t, text("a"))), pool(backend(t, text("b")))
	r := start(t, Settings{Pool: a})
	stop := make(chan struct{})
	var load sync.WaitGroup
	for range 4 {
		load.Go(func() {
			// A new connection each time: a kept one may be closed at the very moment of a request, which is
			// HTTP's own race.
			client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
			for {
				select {
				case <-stop:
					return
				default:
				}
				response, err := client.Get(r.url)
				if err != nil {
					t.Errorf("a request failed during a reload: %v", err)
					return
				}
				_, _ = io.Copy(io.Discard, response.Body)
				_ = response.Body.Close()
			}
		})
	}
	for i := range 200 {
		r.Update(Settings{Pool: []*endpoint.Pool{a, b}[i%2], Drain: 5 * time.Second})
		time.Sleep(time.Millisecond)
	}
	r.Update(Settings{Pool: b, Drain: 5 * time.Second})
	close(stop)
	load.Wait()
	if _, body := r.get(t, "/"); body != "b" {
		t.Errorf("got %q after the last reload", body)
	}
}

func TestProxyHeader(t *testing.T) {
	r := start(t, Settings{
		AcceptProxy: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")},
		Pool: pool(backend(t, func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, r.Header.Get("X-Forwarded-For"))
		})),
	})
	conn, err := net.Dial("tcp", r.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, _ = io.WriteString(conn, "PROXY TCP4 192.0.2.7 192.0.2.1 1234 50061\r\nGET / HTTP/1.0\r\n\r\n")
	answer, _ := io.ReadAll(conn)
	if !strings.HasSuffix(string(answer), "\r\n\r\n192.0.2.7") {
		t.Errorf("got %q", answer)
	}
}

func TestConnectionLimits(t *testing.T) {
	for name, s := range map[string]Settings{"total": {MaxConnections: 1}, "client": {MaxPerClient: 1}} {
		t.Run(name, func(t *testing.T) {
			s.Pool = pool()
			r := start(t, s)
			r.get(t, "/") // keeps its connection
			if _, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Get(r.url); err == nil {
				t.Error("a second connection was taken")
			}
		})
	}
}

// Behind a load balancer the limit counts the clients that it tells, not itself.
func TestClientLimitBehindProxyHeader(t *testing.T) {
	r := start(t, Settings{
		MaxPerClient: 2, AcceptProxy: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")},
		Pool: pool(backend(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") })),
	})
	ask := func(header string) (net.Conn, bool) {
		conn, err := net.Dial("tcp", r.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
		_, _ = io.WriteString(conn, header+"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
		response, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			return conn, false
		}
		_ = response.Body.Close()
		return conn, true
	}
	from := func(client string) string { return "PROXY TCP4 " + client + " 192.0.2.1 1234 50061\r\n" }
	first, _ := ask(from("192.0.2.7"))
	for i, test := range []struct {
		header string
		taken  bool
	}{
		{from("192.0.2.7"), true}, {from("192.0.2.7"), false}, {from("192.0.2.8"), true}, {from("192.0.2.8"), true},
		{from("192.0.2.8"), false}, {"PROXY UNKNOWN\r\n", true}, {"PROXY UNKNOWN\r\n", true}, {"PROXY UNKNOWN\r\n", false},
	} {
		if _, taken := ask(test.header); taken != test.taken {
			t.Errorf("connection %d, %q: taken %v", i, test.header, taken)
		}
	}
	if n := testutil.ToFloat64(r.refusals.WithLabelValues("r", "client_limit")); n != 3 {
		t.Errorf("counted %v refusals", n)
	}
	// A place that is given back is free.
	_ = first.Close()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		if _, taken := ask(from("192.0.2.7")); taken {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the place of a connection that ended is not free")
		}
	}
}

// A client that takes nothing of a large answer is cut off.
func TestSlowReader(t *testing.T) {
	r := start(t, Settings{
		Timeouts: Timeouts{Stall: 200 * time.Millisecond},
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			for range 1000 {
				if _, err := w.Write(make([]byte, 1<<20)); err != nil {
					return
				}
			}
		}),
	})
	conn, err := net.Dial("tcp", r.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, _ = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: h\r\n\r\n")
	deadline := time.Now().Add(20 * time.Second)
	for testutil.ToFloat64(r.Metrics.connections.WithLabelValues("r")) == 0 || r.Active() > 0 {
		if time.Now().After(deadline) {
			t.Fatal("the connection is still open")
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// A client that begins a header, or a body, and does not go on.
func TestSlowWriter(t *testing.T) {
	r := start(t, Settings{
		Timeouts: Timeouts{Header: 200 * time.Millisecond, Stall: 200 * time.Millisecond},
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if _, err := io.Copy(io.Discard, r.Body); err != nil {
				w.WriteHeader(http.StatusRequestTimeout)
			}
		}),
	})
	for _, begin := range []string{"GET / HT", "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\n123"} {
		conn, err := net.Dial("tcp", r.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(conn, begin)
		_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
		if _, err := io.ReadAll(conn); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("after %q the connection stayed open", begin)
		}
		_ = conn.Close()
	}
}

// The observer and the connection must leave sendfile reachable: a file goes down to the TCP connection as such.
func TestFilesKeepReadFrom(t *testing.T) {
	name := filepath.Join(t.TempDir(), "image")
	content := make([]byte, 24<<20+123)
	_, _ = rand.Read(content)
	if err := os.WriteFile(name, content, 0o600); err != nil {
		t.Fatal(err)
	}
	r := start(t, Settings{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, ok := w.(io.ReaderFrom); !ok {
			t.Error("the handler's ResponseWriter has no ReadFrom")
		}
		http.ServeFile(w, r, name)
	})})
	response, err := r.http.Get(r.url)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	got, err := io.ReadAll(response.Body)
	if err != nil || !bytes.Equal(got, content) {
		t.Errorf("got %d bytes, %v", len(got), err)
	}
	if n := testutil.ToFloat64(r.transferred.WithLabelValues("r", "out")); n < float64(len(content)) {
		t.Errorf("counted %v bytes out", n)
	}
}

// A client sends before it has the answer to its Upgrade: all of it arrives, in order (RFC 9110 section 7.8).
func TestBytesBeforeTheSwitchArrive(t *testing.T) {
	const head = "GET / HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n"
	endpoint, stop := rawEndpoint(t, func(conn net.Conn) {
		defer conn.Close()
		r := bufio.NewReader(conn)
		if _, err := http.ReadRequest(r); err != nil {
			return
		}
		time.Sleep(100 * time.Millisecond)
		_, _ = conn.Write([]byte("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n"))
		_, _ = io.Copy(conn, r)
	})
	defer stop()
	r := start(t, Settings{Pool: pool(endpoint)})
	for name, parts := range map[string][]string{
		"in the request's segment": {head + "first second"},
		"soon after it":            {head, "first ", "second"},
		"both":                     {head + "fi", "rst second"},
		"more than a buffer":       {head + strings.Repeat("x", 10_000), strings.Repeat("y", 10_000)},
		"behind the switch":        {head, "", "first"},
	} {
		t.Run(name, func(t *testing.T) {
			conn, err := net.Dial("tcp", r.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
			want := strings.TrimPrefix(strings.Join(parts, ""), head)
			for _, part := range parts {
				if _, err := io.WriteString(conn, part); err != nil {
					t.Fatal(err)
				}
				time.Sleep(20 * time.Millisecond)
				if part == "" {
					time.Sleep(200 * time.Millisecond)
				}
			}
			answers := bufio.NewReader(conn)
			answer, err := http.ReadResponse(answers, nil)
			if err != nil || answer.StatusCode != http.StatusSwitchingProtocols {
				t.Fatalf("got %v, %v", answer, err)
			}
			got := make([]byte, len(want))
			if n, err := io.ReadFull(answers, got); err != nil || string(got) != want {
				t.Errorf("got %d bytes of %d, %v", n, len(want), err)
			}
		})
	}
}
