package tcp

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/pires/go-proxyproto"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"

	"github.com/tinkerbell/stack/pkg/endpoint"
	"github.com/tinkerbell/stack/pkg/proxy/loop"
	"github.com/tinkerbell/stack/pkg/proxy/sock"
	"github.com/tinkerbell/stack/pkg/record/recordtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// backend is the address of a listener whose connections a function serves.
func backend(t *testing.T, serve func(*net.TCPConn)) netip.AddrPort {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				serve(conn.(*net.TCPConn))
			}()
		}
	}()
	t.Cleanup(func() {
		_ = listener.Close()
		<-done
	})
	return listener.Addr().(*net.TCPAddr).AddrPort()
}

func echo(conn *net.TCPConn) {
	_, _ = io.Copy(conn, conn)
	_ = conn.CloseWrite()
}

// refused is an address where nobody listens.
func refused(t *testing.T) netip.AddrPort {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().(*net.TCPAddr).AddrPort()
}

type running struct {
	*Front
	stop func() error // ends Serve and waits for it
	*Metrics
	log *recordtest.Log
}

// loops run until the test has ended.
func loops(t *testing.T) *loop.Group {
	t.Helper()
	g := loop.NewGroup(2)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- g.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	var started sync.WaitGroup
	for _, l := range g.Loops() {
		started.Add(1)
		l.Do(started.Done)
	}
	started.Wait()
	return g
}

func start(t *testing.T, s Settings, addrs ...netip.AddrPort) running {
	t.Helper()
	return startBy(t, Config{Listen: netip.MustParseAddrPort("127.0.0.1:0"), Settings: s}, addrs...)
}

// startBy starts a front of the route r.
func startBy(t *testing.T, c Config, addrs ...netip.AddrPort) running {
	t.Helper()
	metrics := NewMetrics(prometheus.NewRegistry())
	c.Pool = endpoint.NewPool(endpoint.Config{Route: "r", Sources: []endpoint.Source{endpoint.Fixed(addrs...)}})
	log := new(recordtest.Log)
	c.Route, c.Metrics, c.Loops, c.Sink = "r", metrics, loops(t), log.Add
	f, err := Listen(c)
	if err != nil {
		t.Fatal(err)
	}
	log.Port = f.Addr().Port()
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- f.Serve(ctx) }()
	ended := false
	stop := func() error {
		ended = true
		cancel()
		return <-served
	}
	t.Cleanup(func() {
		if !ended {
			if err := stop(); err != nil {
				t.Errorf("Serve() = %v", err)
			}
		}
	})
	return running{f, stop, metrics, log}
}

func (r running) dial(t *testing.T) *net.TCPConn {
	t.Helper()
	conn, err := net.Dial("tcp", r.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn.(*net.TCPConn)
}

// refusal is how a connection ends that the front refuses. On a busy machine the reset comes before Dial returns.
func (r running) refusal() error { return r.refusalFrom("127.0.0.1") }

func (r running) refusalFrom(client string) error {
	from := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(client)}}
	conn, err := from.Dial("tcp", r.Addr().String())
	if err != nil {
		return err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	_, err = io.ReadAll(conn)
	return err
}

// Sizes below and above the point where a direction goes over to splice.
func TestPass(t *testing.T) {
	for _, size := range []int{0, 1, len(sock.Scratch{}), spliceAfter - 1, spliceAfter + 3*4*sock.PipeSize + 17} {
		r := start(t, Settings{}, backend(t, echo))
		conn := r.dial(t)
		sent := make([]byte, size)
		_, _ = rand.Read(sent)
		go func() {
			_, _ = conn.Write(sent)
			_ = conn.CloseWrite()
		}()
		got, err := io.ReadAll(conn)
		if err != nil || !bytes.Equal(got, sent) {
			t.Errorf("size %d: got %d bytes, equal %v, error %v", size, len(got), bytes.Equal(got, sent), err)
		}
		if err := r.stop(); err != nil {
			t.Error(err)
		}
		for _, direction := range []string{"in", "out"} {
			if n := testutil.ToFloat64(r.transferred.WithLabelValues("r", direction)); n != float64(size) {
				t.Errorf("size %d: counted %v bytes %s", size, n, direction)
			}
		}
	}
}

// A pause in the middle of a bulk transfer gives the pipe back; the rest goes through as before.
func TestPauseInBulk(t *testing.T) {
	r := start(t, Settings{}, backend(t, echo))
	conn := r.dial(t)
	part := bytes.Repeat([]byte("x"), 2*spliceAfter)
	go func() {
		for range 2 {
			_, _ = conn.Write(part)
			time.Sleep(splicePause + splicePause/2)
		}
		_ = conn.CloseWrite()
	}()
	got, err := io.ReadAll(conn)
	if err != nil || len(got) != 2*len(part) {
		t.Errorf("got %d bytes, %v; want %d", len(got), err, 2*len(part))
	}
}

// While one side reads nothing, the other can send no more than the buffers hold, and nothing of it is lost.
func TestSenderWaitsForAReaderThatStops(t *testing.T) {
	read, got := make(chan struct{}), make(chan int64, 1)
	r := start(t, Settings{}, backend(t, func(conn *net.TCPConn) {
		<-read
		n, _ := io.Copy(io.Discard, conn)
		got <- n
	}))
	conn := r.dial(t)
	const much = 256 << 20 // the buffers of four sockets and a pipe hold a tenth of it
	_ = conn.SetWriteDeadline(time.Now().Add(400 * time.Millisecond))
	sent, err := conn.Write(make([]byte, much))
	close(read)
	if !errors.Is(err, os.ErrDeadlineExceeded) || sent > much/4 {
		t.Errorf("sent %d bytes, %v", sent, err)
	}
	_ = conn.CloseWrite()
	if n := <-got; n != int64(sent) {
		t.Errorf("of %d bytes %d arrive", sent, n)
	}
}

// The client half-closes the connection, and gets the answer.
func TestHalfClose(t *testing.T) {
	r := start(t, Settings{}, backend(t, func(conn *net.TCPConn) {
		request, _ := io.ReadAll(conn)
		time.Sleep(50 * time.Millisecond)
		_, _ = conn.Write(bytes.ToUpper(request))
	}))
	conn := r.dial(t)
	_, _ = conn.Write([]byte("hello"))
	_ = conn.CloseWrite()
	got, err := io.ReadAll(conn)
	if string(got) != "HELLO" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestResetIsPassedOn(t *testing.T) {
	r := start(t, Settings{}, backend(t, func(conn *net.TCPConn) {
		_, _ = conn.Read(make([]byte, 1))
		_ = conn.SetLinger(0)
		_ = conn.Close()
	}))
	conn := r.dial(t)
	_, _ = conn.Write([]byte("x"))
	if _, err := io.ReadAll(conn); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("got %v, want a reset", err)
	}
}

func TestRetryOnNextEndpoint(t *testing.T) {
	dead, alive := refused(t), backend(t, echo)
	r := start(t, Settings{}, dead, alive)
	for range 20 {
		conn := r.dial(t)
		_, _ = conn.Write([]byte("x"))
		_ = conn.CloseWrite()
		if got, err := io.ReadAll(conn); string(got) != "x" {
			t.Fatalf("got %q, %v", got, err)
		}
	}
	if n := testutil.ToFloat64(r.dials.WithLabelValues("r", "refused")); n != 3 {
		t.Errorf("%v attempts at the dead endpoint, want 3 before it is ejected", n)
	}
}

func TestNoEndpointResets(t *testing.T) {
	r := start(t, Settings{}, refused(t))
	err := r.refusal()
	if !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("got %v, want a reset", err)
	}
}

func TestIdleTimeout(t *testing.T) {
	t.Parallel()
	r := start(t, Settings{Idle: 2 * time.Second}, backend(t, echo))
	conn := r.dial(t)
	for range 4 { // one direction at a time keeps both alive
		_, _ = conn.Write([]byte("x"))
		if _, err := conn.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(600 * time.Millisecond)
	}
	if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("got %v, want a reset", err)
	}
	if n := testutil.ToFloat64(r.aborted.WithLabelValues("r", "idle")); n == 0 {
		t.Error("idle end was not counted")
	}
}

func TestLimits(t *testing.T) {
	for name, s := range map[string]Settings{"total": {MaxConnections: 2}, "client": {MaxPerClient: 2}} {
		t.Run(name, func(t *testing.T) {
			r := start(t, s, backend(t, echo))
			for i := range 2 {
				conn := r.dial(t)
				_, _ = conn.Write([]byte("x"))
				if _, err := conn.Read(make([]byte, 1)); err != nil {
					t.Errorf("connection %d: %v", i, err)
				}
			}
			if err := r.refusal(); !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("the third connection got %v, want a reset", err)
			}
		})
	}
}

// A peer that must send a PROXY header and sends nothing keeps no connection open, neither its own nor one to an
// endpoint.
func TestProxyHeaderNeverComes(t *testing.T) {
	t.Parallel()
	r := start(t, Settings{AcceptProxy: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}},
		backend(t, func(*net.TCPConn) { t.Error("the endpoint was asked") }))
	conn := r.dial(t)
	if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("got %v, want a reset", err)
	}
	torn := r.dial(t) // a header is sent in one piece
	_, _ = io.WriteString(torn, "PROXY TCP4 192.0.2.7 ")
	if _, err := torn.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("got %v, want a reset", err)
	}
	if n := testutil.ToFloat64(r.refusals.WithLabelValues("r", "proxy_header")); n != 2 {
		t.Errorf("counted %v refusals", n)
	}
}

// Behind a load balancer the limit counts the clients of the PROXY headers.
func TestClientLimitBehindProxyHeader(t *testing.T) {
	r := start(t, Settings{MaxPerClient: 1, AcceptProxy: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}},
		backend(t, echo))
	for i, test := range []struct {
		client string
		taken  bool
	}{{"192.0.2.7", true}, {"192.0.2.7", false}, {"192.0.2.8", true}, {"192.0.2.8", false}} {
		conn := r.dial(t)
		_, _ = io.WriteString(conn, "PROXY TCP4 "+test.client+" 192.0.2.1 1234 42113\r\nx")
		if n, _ := conn.Read(make([]byte, 1)); (n == 1) != test.taken {
			t.Errorf("connection %d of %s: taken %v", i, test.client, n == 1)
		}
	}
	if n := testutil.ToFloat64(r.refusals.WithLabelValues("r", "client_limit")); n != 2 {
		t.Errorf("counted %v refusals", n)
	}
}

func TestDrain(t *testing.T) {
	r := start(t, Settings{Drain: 10 * time.Second}, backend(t, echo))
	conn := r.dial(t)
	_, _ = conn.Write([]byte("x"))
	_, _ = conn.Read(make([]byte, 1))
	stopped := make(chan error, 1)
	go func() { stopped <- r.stop() }()
	for { // until new connections are refused
		other, err := net.Dial("tcp", r.Addr().String())
		if err != nil {
			break
		}
		_ = other.Close()
	}
	_, _ = conn.Write([]byte("y"))
	if n, err := conn.Read(make([]byte, 1)); n != 1 {
		t.Fatalf("an open connection broke while draining: %v", err)
	}
	_ = conn.Close()
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}

func TestDrainDeadline(t *testing.T) {
	r := start(t, Settings{Drain: 100 * time.Millisecond}, backend(t, echo))
	conn := r.dial(t)
	_, _ = conn.Write([]byte("x"))
	_, _ = conn.Read(make([]byte, 1))
	if err := r.stop(); err != nil {
		t.Error(err)
	}
	if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("got %v, want a reset", err)
	}
}

// New settings hold for new connections. Open ones keep their endpoints.
func TestUpdate(t *testing.T) {
	say := func(text string) func(*net.TCPConn) {
		return func(conn *net.TCPConn) {
			for {
				if _, err := conn.Read(make([]byte, 1)); err != nil {
					return
				}
				_, _ = conn.Write([]byte(text))
			}
		}
	}
	r := start(t, Settings{}, backend(t, say("a")))
	ask := func(conn *net.TCPConn) string {
		_, _ = conn.Write([]byte("?"))
		answer := make([]byte, 1)
		_, _ = conn.Read(answer)
		return string(answer)
	}
	old := r.dial(t)
	if got := ask(old); got != "a" {
		t.Fatalf("got %q", got)
	}
	r.Update(Settings{Pool: endpoint.NewPool(endpoint.Config{
		Sources: []endpoint.Source{endpoint.Fixed(backend(t, say("b")))},
	})})
	if got := ask(old) + ask(r.dial(t)); got != "ab" {
		t.Errorf("old and new connection got %q, want ab", got)
	}
}

func TestPortTaken(t *testing.T) {
	taken := backend(t, echo)
	_, err := Listen(Config{Route: "tink", Listen: taken, Loops: loops(t)})
	if err == nil || !strings.Contains(err.Error(), "route tink: port") || !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("got %v", err)
	}
}

func TestProxyHeaders(t *testing.T) {
	client := netip.MustParseAddrPort("192.0.2.7:1234")
	header := func(version byte) string {
		var b bytes.Buffer
		_, _ = proxyproto.HeaderProxyFromAddrs(version, net.TCPAddrFromAddrPort(client),
			net.TCPAddrFromAddrPort(netip.MustParseAddrPort("192.0.2.1:42113"))).WriteTo(&b)
		return b.String()
	}
	trusted := []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
	tests := map[string]struct {
		accept []netip.Prefix
		send   int
		in     string
		want   string // that the endpoint receives; empty for a reset
	}{
		"v1 to v2":           {trusted, 2, header(1) + "hello", header(2) + "hello"},
		"v2 to v1":           {trusted, 1, header(2) + "hello", header(1) + "hello"},
		"v2 taken off":       {trusted, 0, header(2) + "hello", "hello"},
		"untrusted is data":  {nil, 0, header(1) + "hello", header(1) + "hello"},
		"missing is refused": {trusted, 0, "GET / HTTP/1.1\r\n\r\n", ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			r := start(t, Settings{AcceptProxy: test.accept, SendProxy: test.send}, backend(t, echo))
			conn := r.dial(t)
			_, _ = conn.Write([]byte(test.in))
			_ = conn.CloseWrite()
			got, err := io.ReadAll(conn)
			if string(got) != test.want || (err != nil) != (test.want == "") {
				t.Errorf("got %q, %v; want %q", got, err, test.want)
			}
		})
	}
}

// When the loops end before the front, no connection is accepted any more, and open ones are reset.
func TestLoopsEnd(t *testing.T) {
	g := loop.NewGroup(2)
	life, end := context.WithCancel(t.Context())
	over := make(chan error, 1)
	go func() { over <- g.Run(life) }()
	serve := func(ctx context.Context) (*Front, <-chan error) {
		pool := endpoint.NewPool(endpoint.Config{Sources: []endpoint.Source{endpoint.Fixed(backend(t, echo))}})
		f, err := Listen(Config{
			Listen: netip.MustParseAddrPort("127.0.0.1:0"), Settings: Settings{Pool: pool, Drain: 20 * time.Second}, Loops: g,
		})
		if err != nil {
			t.Fatal(err)
		}
		served := make(chan error, 1)
		go func() { served <- f.Serve(ctx) }()
		return f, served
	}
	ctx, stop := context.WithCancel(t.Context())
	f, served := serve(ctx)
	conn := running{Front: f}.dial(t)
	_, _ = conn.Write([]byte("x"))
	if n, err := conn.Read(make([]byte, 1)); n != 1 {
		t.Errorf("got no echo: %v", err)
	}
	end()
	if err := <-over; err != nil {
		t.Fatal(err)
	}
	stop()
	if err := <-served; err != nil {
		t.Error(err)
	}
	if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("got %v, want a reset", err)
	}
	_, served = serve(t.Context())
	if err := <-served; err == nil {
		t.Error("a front serves with loops that have ended")
	}
}
