package web

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime/debug"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/pkg/proxy/http1"
	"github.com/tinkerbell/stack/pkg/proxy/loop"
)

// Whatever an endpoint does to a loop's request, the answer is right, and the loop keeps the connection.
func TestLoopEndpoint(t *testing.T) {
	much := func(n int) string {
		return fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", n, strings.Repeat("x", n))
	}
	longest := http1.Piece - len("HTTP/1.1 200 OK\r\nContent-Length: 32720\r\n\r\n")
	pause := func() { time.Sleep(3 * loop.Tick) }
	reset := func(c net.Conn) { _ = c.(*net.TCPConn).SetLinger(0) }
	for name, test := range map[string]struct {
		second func(conn net.Conn) (again bool) // what the endpoint does to the second request
		asked  int64                            // requests that the endpoint has seen
		size   int                              // of the second answer
	}{
		"answers": {func(c net.Conn) bool { _, err := io.WriteString(c, fine); return err == nil }, 3, 2},
		"answers in pieces": {func(c net.Conn) bool {
			for i := range fine {
				_, _ = io.WriteString(c, fine[i:i+1])
			}
			return true
		}, 3, 2},
		"answers slowly": {func(c net.Conn) bool { pause(); _, err := io.WriteString(c, fine); return err == nil }, 3, 2},
		"stops in the head": {func(c net.Conn) bool {
			_, _ = io.WriteString(c, fine[:20])
			pause()
			_, err := io.WriteString(c, fine[20:])
			return err == nil
		}, 3, 2},
		"stops in the body": {func(c net.Conn) bool {
			_, _ = io.WriteString(c, fine[:len(fine)-1])
			pause()
			_, err := io.WriteString(c, fine[len(fine)-1:])
			return err == nil
		}, 3, 2},
		"answers and closes": {func(c net.Conn) bool { _, _ = io.WriteString(c, fine); return false }, 3, 2},
		"closes":             {func(net.Conn) bool { return false }, 4, 2},
		"resets":             {func(c net.Conn) bool { reset(c); return false }, 4, 2},
		"closes in the head": {func(c net.Conn) bool { _, _ = io.WriteString(c, fine[:20]); return false }, 4, 2},
		"resets in the head": {func(c net.Conn) bool {
			_, _ = io.WriteString(c, fine[:20])
			reset(c)
			return false
		}, 4, 2},
		"as long as can be": {func(c net.Conn) bool { _, _ = io.WriteString(c, much(longest)); return true }, 3, longest},
		"longer":            {func(c net.Conn) bool { _, _ = io.WriteString(c, much(longest+1)); return true }, 3, longest + 1},
		"much longer":       {func(c net.Conn) bool { _, _ = io.WriteString(c, much(3<<20)); return true }, 3, 3 << 20},
		"says more":         {func(c net.Conn) bool { _, _ = io.WriteString(c, fine+"more"); return true }, 3, 2},
		"long head": {func(c net.Conn) bool {
			head := "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX: " + strings.Repeat("x", 2*4<<10)
			_, _ = io.WriteString(c, head)
			_, err := io.WriteString(c, "\r\n\r\nok")
			return err == nil
		}, 3, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var asked atomic.Int64
			addr, _ := rawEndpoint(t, func(conn net.Conn) {
				reader := bufio.NewReader(conn)
				for {
					if _, err := http.ReadRequest(reader); err != nil {
						return
					}
					if asked.Add(1) == 2 {
						if !test.second(conn) {
							return
						}
						continue
					}
					_, _ = io.WriteString(conn, fine)
				}
			})
			p := pool(addr)
			r := start(t, Settings{Pool: p})
			c := r.talk(t)
			for i := range 3 {
				response, body := c.ask(t, plainGet)
				if size := []int{2, test.size, 2}[i]; response.StatusCode != 200 || len(body) != size {
					t.Errorf("answer %d is %d of %d bytes, want %d", i, response.StatusCode, len(body), size)
				}
			}
			if len(r.loopConns()) == 0 {
				t.Error("the connection has left the loop")
			}
			r.counts(t, 3)
			if !r.settled() {
				t.Error("there are requests in flight")
			}
			if n := asked.Load(); n != test.asked {
				t.Errorf("the endpoint saw %d requests, want %d", n, test.asked)
			}
			if s := p.Status()[0]; s.Active != 0 || s.Failures != 0 {
				t.Errorf("the endpoint has %d requests and %d failures", s.Active, s.Failures)
			}
			_ = c.Conn.Close()
			if err := r.stop(); err != nil { // or the endpoint waits for us
				t.Error(err)
			}
		})
	}
}

// An endpoint that takes no connection, or drops a new one, is blamed once, and the client told.
func TestLoopFailures(t *testing.T) {
	mute, _ := rawEndpoint(t, func(conn net.Conn) { _, _ = http.ReadRequest(bufio.NewReader(conn)) })
	resets, _ := rawEndpoint(t, func(conn net.Conn) {
		_, _ = http.ReadRequest(bufio.NewReader(conn))
		_ = conn.(*net.TCPConn).SetLinger(0)
	})
	for name, test := range map[string]struct {
		addr string
		code int
	}{
		"refuses": {refused(t), 502}, "deaf": {deaf(t), 504}, "closes": {mute, 502}, "resets": {resets, 502},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := pool(test.addr)
			r := start(t, Settings{Pool: p, Timeouts: Timeouts{Dial: 2 * loop.Tick}})
			if response, body := r.talk(t).ask(t, plainGet); response.StatusCode != test.code {
				t.Errorf("got %d %q, want %d", response.StatusCode, body, test.code)
			}
			eventually(t, "the request is counted", r.settled)
			if s := p.Status()[0]; s.Active != 0 || s.Failures != 1 {
				t.Errorf("the endpoint has %d requests and %d failures", s.Active, s.Failures)
			}
		})
	}
}

// Another endpoint is asked where the first takes no connection.
func TestLoopRetry(t *testing.T) {
	addr := backend(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") })
	r := start(t, Settings{Pool: pool(refused(t), addr)})
	for range 2 {
		if response, body := r.talk(t).ask(t, plainGet); response.StatusCode != 200 || body != "ok" {
			t.Errorf("got %d %q", response.StatusCode, body)
		}
	}
}

// What a client sends while it is answered is its next request, and an end behind a request is seen behind its answer.
func TestLoopClient(t *testing.T) {
	asked, answer := make(chan string, 4), make(chan struct{})
	r := start(t, Settings{Pool: pool(backend(t, func(w http.ResponseWriter, r *http.Request) {
		asked <- r.URL.Path
		<-answer
		_, _ = io.WriteString(w, r.URL.Path)
	}))})
	c := r.talk(t)
	for _, path := range []string{"/1", "/2", "/3"} {
		_, _ = io.WriteString(c.Conn, "GET "+path+" HTTP/1.1\r\nHost: h\r\n\r\n")
		if path == "/1" {
			<-asked // what comes from now on comes later
		}
	}
	for i := range 3 {
		if i > 0 {
			<-asked
		}
		answer <- struct{}{}
		if _, body := c.ask(t, ""); body != fmt.Sprintf("/%d", i+1) {
			t.Errorf("answer %d is %q", i+1, body)
		}
	}
	half := r.talk(t)
	_, _ = io.WriteString(half.Conn, plainGet)
	_ = half.Conn.(*net.TCPConn).CloseWrite()
	<-asked
	answer <- struct{}{}
	response, err := http.ReadResponse(half.Reader, nil)
	if err != nil {
		t.Fatal(err)
	}
	if body, err := io.ReadAll(response.Body); string(body) != "/" {
		t.Errorf("a client that has said all it wants got %q, %v", body, err)
	}
	if _, err := half.Peek(1); !errors.Is(err, io.EOF) {
		t.Errorf("its connection got %v, want its end", err)
	}
}

// A client that does not take its answer at once gets it as it takes it; one that goes away then is counted.
func TestLoopSlowReader(t *testing.T) {
	text := strings.Repeat("0123456789abcdef", http1.Piece/16-8)
	for _, stays := range []bool{true, false} {
		addr, _ := raw(t, fine, fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(text), text))
		p := pool(addr)
		r := start(t, Settings{Pool: p})
		_ = unix.SetsockoptInt(r.Front.connections.socket.FD(), unix.SOL_SOCKET, unix.SO_SNDBUF, 1) // connections inherit it
		dialer := net.Dialer{Control: func(_, _ string, raw syscall.RawConn) error {
			return raw.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, 1) })
		}}
		conn, err := dialer.Dial("tcp", r.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(30 * time.Second))
		c := talk{conn, bufio.NewReader(conn)}
		c.ask(t, plainGet)
		eventually(t, "the first request is counted", r.settled)
		before := testutil.ToFloat64(r.transferred.WithLabelValues("r", "out"))
		_, _ = io.WriteString(c.Conn, plainGet)
		eventually(t, "a part of the answer has been sent", func() bool {
			return testutil.ToFloat64(r.transferred.WithLabelValues("r", "out")) > before
		})
		if r.settled() {
			t.Fatal("the client has taken all of the answer")
		}
		failures := 0.0
		if stays {
			if _, body := c.ask(t, ""); body != text {
				t.Errorf("got %d bytes of %d", len(body), len(text))
			}
		} else {
			_ = c.Conn.Close()
			failures = 1
		}
		eventually(t, "the request is counted", r.settled)
		if n := testutil.ToFloat64(r.failures.WithLabelValues("r", "client_gone")); n != failures {
			t.Errorf("%v clients gone, want %v", n, failures)
		}
		if s := p.Status()[0]; s.Active != 0 || s.Failures != 0 {
			t.Errorf("the endpoint has %d requests and %d failures", s.Active, s.Failures)
		}
	}
}

// A drain ends while an endpoint is being connected to, for a client that has gone.
func TestLoopDrainWhileDialing(t *testing.T) {
	p := pool(deaf(t))
	r := start(t, Settings{Pool: p, Drain: time.Millisecond, Timeouts: Timeouts{Dial: -1}})
	c := r.talk(t)
	_, _ = io.WriteString(c.Conn, plainGet)
	eventually(t, "the request comes", func() bool { return testutil.ToFloat64(r.flight.WithLabelValues("r")) == 1 })
	_ = c.Conn.Close()
	if err := r.stop(); err != nil {
		t.Error(err)
	}
	if n := testutil.ToFloat64(r.requests.WithLabelValues("r", "499")); n != 1 {
		t.Errorf("%v requests counted as left, want 1", n)
	}
	if s := p.Status()[0]; s.Active != 0 || s.Failures != 0 {
		t.Errorf("the endpoint has %d requests and %d failures", s.Active, s.Failures)
	}
}

// Settings with times that are too short for a loop's clock hold for connections that it has, too.
func TestLoopShortTimes(t *testing.T) {
	addr, _ := raw(t, fine, "")
	r := start(t, Settings{Pool: pool(addr)})
	c := r.talk(t)
	c.ask(t, plainGet)
	r.Update(Settings{Pool: r.current.Load().settings.Pool, Timeouts: Timeouts{Response: loop.Tick / 4}})
	c.ask(t, plainGet)
	if n := len(r.loopConns()); n != 0 {
		t.Errorf("%d connections are in a loop", n)
	}
}

// What a client said before it reset its connection is still told to be from it: a socket that was reset no longer
// knows its peer.
func TestLoopResetKeepsAddress(t *testing.T) {
	told := make(chan string, 1)
	r := start(t, Settings{Pool: pool(backend(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			told <- r.Header.Get(http1.ForwardedFor) + ", " + r.Header.Get(http1.RealIP)
		}
		_, _ = io.WriteString(w, "ok")
	}))})
	c := r.talk(t)
	c.ask(t, plainGet)
	reset, busy := make(chan struct{}), make(chan struct{})
	for _, in := range r.loops {
		in.engine.Soon(func() {
			busy <- struct{}{}
			<-reset
		})
		<-busy
	}
	_, _ = io.WriteString(c.Conn, "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nab")
	_ = c.Conn.(*net.TCPConn).SetLinger(0)
	_ = c.Conn.Close()
	close(reset)
	select {
	case from := <-told:
		if from != "127.0.0.1, 127.0.0.1" {
			t.Errorf("the endpoint is told of %s", from)
		}
	case <-time.After(30 * time.Second):
		t.Error("the endpoint was not asked")
	}
}

// A plain request allocates nothing.
func TestPlainAllocations(t *testing.T) {
	answer := []byte("HTTP/1.1 200 OK\r\nDate: x\r\nContent-Length: 2\r\n\r\nok")
	addr, _ := rawEndpoint(t, func(conn net.Conn) {
		buffer := make([]byte, 1<<10)
		for {
			if _, err := conn.Read(buffer); err != nil { // a small request comes whole
				return
			}
			_, _ = conn.Write(answer)
		}
	})
	r := start(t, Settings{Pool: pool(addr)})
	c := r.talk(t)
	request, buffer := []byte(plainGet), make([]byte, 1<<10)
	n := testing.AllocsPerRun(500, func() {
		if _, err := c.Conn.Write(request); err != nil {
			t.Error(err)
		}
		if _, err := c.Conn.Read(buffer); err != nil {
			t.Error(err)
		}
	})
	if n > 0 && !raced() {
		t.Errorf("%v allocations for each request", n)
	}
	_ = c.Conn.Close()
	if err := r.stop(); err != nil { // or the endpoint waits for us
		t.Error(err)
	}
}

// raced is whether the race detector is on, for which pools forget things on purpose.
func raced() bool {
	info, _ := debug.ReadBuildInfo()
	return info != nil && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}
