package web

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"
	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/internal/testwait"
)

// talk is a client's connection.
type talk struct {
	net.Conn
	*bufio.Reader
}

func (r running) talk(t *testing.T) talk {
	t.Helper()
	conn, err := net.Dial("tcp", r.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(30 * time.Second))
	return talk{conn, bufio.NewReader(conn)}
}

// ask sends a request and returns the answer with its body.
func (c talk) ask(t *testing.T, head string) (*http.Response, string) {
	t.Helper()
	if _, err := io.WriteString(c.Conn, head); err != nil {
		t.Fatal(err)
	}
	response, err := http.ReadResponse(c.Reader, nil)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response, string(body)
}

const plainGet = "GET / HTTP/1.1\r\nHost: h\r\n\r\n"

// A connection goes over to net/http in the midst of a request, and the endpoint is not asked twice.
func TestHandOver(t *testing.T) {
	chunked := "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"
	for name, answer := range map[string]string{
		"chunked":   chunked,
		"no length": "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nok",
		"long head": "HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 8000) + "\r\nContent-Length: 2\r\n\r\nok",
		"interim":   "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + fine,
	} {
		addr, connections := raw(t, fine, answer)
		r := start(t, Settings{Pool: pool(addr)})
		c := r.talk(t)
		for i := range 2 {
			if response, body := c.ask(t, plainGet); response.StatusCode != 200 || body != "ok" {
				t.Errorf("%s: answer %d is %d %q", name, i, response.StatusCode, body)
			}
		}
		if n := connections.Load(); n != 1 {
			t.Errorf("%s: %d connections to the endpoint", name, n)
		}
		r.counts(t, 2)
		if err := r.stop(); err != nil {
			t.Error(err)
		}
		if n := testutil.ToFloat64(r.flight.WithLabelValues("r")); n != 0 {
			t.Errorf("%s: %v requests in flight", name, n)
		}
	}
}

// Plain requests, odd ones and plain ones again, on one connection, counted once each.
func TestMixedConnection(t *testing.T) { withAndWithout(t, testMixedConnection) }

func testMixedConnection(t *testing.T, start starter) {
	r := start(t, Settings{Pool: pool(backend(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		_, _ = io.WriteString(w, r.Method+string(body)+r.Header.Get("X-Forwarded-For"))
	}))})
	c := r.talk(t)
	for _, one := range [][2]string{
		{plainGet, "GET127.0.0.1"},
		{"GET / HTTP/1.1\r\nHost: h\r\nX-forwarded-FOR: 192.0.2.1\r\n\r\n", "GET127.0.0.1"},
		{"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nab", "POSTab127.0.0.1"},
		{plainGet, "GET127.0.0.1"},
	} {
		if _, body := c.ask(t, one[0]); body != one[1] {
			t.Errorf("%q got %q", one[0], body)
		}
	}
	r.counts(t, 4)
	if n := testutil.ToFloat64(r.Metrics.connections.WithLabelValues("r")); n != 1 {
		t.Errorf("%v connections counted, want 1", n)
	}
}

// The head of a plain request in two pieces, and two requests in one, are answered like any other.
func TestHeadInPieces(t *testing.T) { withAndWithout(t, testHeadInPieces) }

func testHeadInPieces(t *testing.T, start starter) {
	r := start(t, Settings{Pool: pool(backend(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.URL.Path)
	}))})
	c := r.talk(t)
	_, _ = io.WriteString(c.Conn, plainGet[:7])
	time.Sleep(20 * time.Millisecond)
	if _, body := c.ask(t, plainGet[7:]); body != "/" {
		t.Errorf("got %q", body)
	}
	c = r.talk(t)
	if _, body := c.ask(t, plainGet+"GET /second HTTP/1.1\r\nHost: h\r\n\r\n"); body != "/" {
		t.Errorf("got %q", body)
	}
	if _, body := c.ask(t, ""); body != "/second" {
		t.Errorf("got %q", body)
	}
}

// A client that wants its connection closed, as those do that come for one answer, gets it closed behind the answer; the
// connection to the endpoint is kept.
func TestLastRequestIsPlain(t *testing.T) {
	var mu sync.Mutex
	connections := map[string]bool{}
	r := start(t, Settings{Pool: pool(backend(t, func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		connections[r.RemoteAddr] = true
		_, _ = io.WriteString(w, "ok")
	}))})
	const clients = 12
	for i := range clients {
		c := r.talk(t)
		if i%2 == 1 {
			c.ask(t, plainGet)
		}
		response, body := c.ask(t, "GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
		if body != "ok" || !response.Close {
			t.Errorf("answer %d is %q, close %v", i, body, response.Close)
		}
		if _, err := c.Peek(1); !errors.Is(err, io.EOF) {
			t.Errorf("behind answer %d the client got %v, want its end", i, err)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if n := len(connections); n > clients/2 {
		t.Errorf("%d connections to the endpoint for %d clients of one address", n, clients)
	}
	r.counts(t, clients+clients/2)
}

// A drain closes connections that wait for their next request, and tells those that are being answered.
func TestDrainOfPlainConnections(t *testing.T) { withAndWithout(t, testDrainOfPlainConnections) }

func testDrainOfPlainConnections(t *testing.T, start starter) {
	asked, answer := make(chan struct{}), make(chan struct{})
	r := start(t, Settings{Drain: time.Minute, Pool: pool(backend(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			close(asked)
			<-answer
		}
		_, _ = io.WriteString(w, "done")
	}))})
	idle, busy := r.talk(t), r.talk(t)
	idle.ask(t, plainGet)
	busy.ask(t, plainGet)
	_, _ = io.WriteString(busy.Conn, "GET /slow HTTP/1.1\r\nHost: h\r\n\r\n")
	<-asked
	stopped := make(chan error, 1)
	go func() { stopped <- r.stop() }()
	if _, err := idle.Peek(1); !errors.Is(err, io.EOF) {
		t.Errorf("the waiting connection got %v, want its end", err)
	}
	close(answer)
	if response, body := busy.ask(t, ""); body != "done" || !response.Close {
		t.Errorf("the request under way got %q, close %v", body, response.Close)
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}

// The next request is not waited for beyond the idle time, the first not beyond the header's.
func TestPlainTimeouts(t *testing.T) {
	t.Parallel()
	withAndWithout(t, testPlainTimeouts)
}

func testPlainTimeouts(t *testing.T, start starter) {
	addr, _ := raw(t, fine, fine, fine)
	r := start(t, Settings{Pool: pool(addr), Timeouts: Timeouts{Idle: 3 * time.Second, Header: 2 * time.Second}})
	silent, idle := r.talk(t), r.talk(t)
	for range 3 {
		idle.ask(t, plainGet)
	}
	for name, c := range map[string]talk{"silent": silent, "idle": idle} {
		if _, err := c.Peek(1); !errors.Is(err, io.EOF) || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("the %s connection got %v, want its end", name, err)
		}
	}
}

// An endpoint that says nothing is given up in time, and asked once.
func TestSilentEndpoint(t *testing.T) { withAndWithout(t, testSilentEndpoint) }

func testSilentEndpoint(t *testing.T, start starter) {
	addr, connections := raw(t, "", fine)
	r := start(t, Settings{Pool: pool(addr), Timeouts: Timeouts{Response: 100 * time.Millisecond}})
	response, _ := r.talk(t).ask(t, plainGet)
	if response.StatusCode != http.StatusGatewayTimeout {
		t.Errorf("got %d", response.StatusCode)
	}
	if n := connections.Load(); n != 1 {
		t.Errorf("%d connections to the endpoint", n)
	}
}

// The access log has plain requests as it has others.
func TestPlainAccess(t *testing.T) { withAndWithout(t, testPlainAccess) }

func testPlainAccess(t *testing.T, start starter) {
	var log strings.Builder
	every := AccessLog("all")
	addr, _ := raw(t, fine)
	r := start(t, Settings{Pool: pool(addr), AccessLog: every}, &log)
	r.talk(t).ask(t, "GET /a%20b?c HTTP/1.1\r\nHost: h\r\nuser-agent: me\r\n\r\n")
	if err := r.stop(); err != nil {
		t.Error(err)
	}
	for _, part := range []string{"path=\"/a b\"", "code=200", "bytes=2", "client=127.0.0.1", "host=h", "agent=me"} {
		if !strings.Contains(log.String(), part) {
			t.Errorf("no %s in %s", part, log.String())
		}
	}
}

// The time of a request that was handed over counts from its head, not from the handing over.
func TestHandOverKeepsTheTime(t *testing.T) { withAndWithout(t, testHandOverKeepsTheTime) }

func testHandOverKeepsTheTime(t *testing.T, start starter) {
	const thought = 50 * time.Millisecond
	r := start(t, Settings{Pool: pool(backend(t, func(w http.ResponseWriter, _ *http.Request) {
		time.Sleep(thought)
		_ = http.NewResponseController(w).Flush() // chunked
	}))})
	r.talk(t).ask(t, plainGet)
	if err := r.stop(); err != nil {
		t.Error(err)
	}
	var sample dto.Metric
	if err := r.durations.WithLabelValues("r").(prometheus.Metric).Write(&sample); err != nil {
		t.Fatal(err)
	}
	if h := sample.GetHistogram(); h.GetSampleCount() != 1 || h.GetSampleSum() < thought.Seconds() {
		t.Errorf("%d requests of %v s in all", h.GetSampleCount(), h.GetSampleSum())
	}
}

// A drain's deadline ends a request for good: its endpoint is not asked again, on another connection.
func TestEndOfDrainAsksNobodyAgain(t *testing.T) { withAndWithout(t, testEndOfDrainAsksNobodyAgain) }

func testEndOfDrainAsksNobodyAgain(t *testing.T, start starter) {
	var asked atomic.Int64
	slow, ended := make(chan struct{}), make(chan struct{})
	r := start(t, Settings{Drain: 50 * time.Millisecond, Pool: pool(backend(t, func(_ http.ResponseWriter, r *http.Request) {
		if asked.Add(1) == 2 {
			close(slow)
			<-r.Context().Done()
			close(ended)
		}
	}))})
	c := r.talk(t)
	c.ask(t, plainGet)
	_, _ = io.WriteString(c.Conn, plainGet)
	<-slow
	if err := r.stop(); err != nil {
		t.Error(err)
	}
	<-ended
	if n := asked.Load(); n != 2 {
		t.Errorf("the endpoint saw %d requests, want 2", n)
	}
	testwait.Until(t, "no request is in flight", func() bool {
		return testutil.ToFloat64(r.flight.WithLabelValues("r")) == 0
	})
}

// A drain's deadline ends an attempt to connect, too. (net/http's Transport dials on for the next request.)
func TestEndOfDrainEndsDialing(t *testing.T) { withAndWithout(t, testEndOfDrainEndsDialing) }

func testEndOfDrainEndsDialing(t *testing.T, start starter) {
	r := start(t, Settings{Drain: 50 * time.Millisecond, Timeouts: Timeouts{Dial: -1}, Pool: pool(deaf(t))})
	for _, way := range []string{"plain", "pool"} {
		_, _ = io.WriteString(r.talk(t).Conn, ways[way])
	}
	for deadline := time.Now().Add(20 * time.Second); testutil.ToFloat64(r.flight.WithLabelValues("r")) < 2; {
		if time.Now().After(deadline) {
			t.Fatal("the requests did not arrive")
		}
		time.Sleep(time.Millisecond)
	}
	stopped := make(chan error, 1)
	go func() { stopped <- r.stop() }()
	select {
	case err := <-stopped:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("the front does not end")
	}
}

// deaf is an address that takes no connection and refuses none.
func deaf(t *testing.T) string {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	if err := unix.Listen(fd, 0); err != nil {
		t.Fatal(err)
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	addr := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), uint16(name.(*unix.SockaddrInet4).Port)).String()
	for {
		conn, err := net.DialTimeout("tcp", addr, 100*time.Millisecond)
		if err != nil {
			return addr // its queue is full
		}
		t.Cleanup(func() { _ = conn.Close() })
	}
}
