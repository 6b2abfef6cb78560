package web

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// secured is TLS as a route has it.
func secured(t *testing.T) *tls.Config {
	t.Helper()
	server := httptest.NewUnstartedServer(nil)
	server.StartTLS()
	t.Cleanup(server.Close)
	return &tls.Config{
		MinVersion: tls.VersionTLS12, Certificates: server.TLS.Certificates, NextProtos: []string{"h2", "http/1.1"},
	}
}

// multiplexed is a client's connection of HTTP/2, by TLS where the front has that.
func multiplexed(t *testing.T, r running) (net.Conn, *http2.Framer) {
	t.Helper()
	var c net.Conn
	c, err := net.Dial("tcp", r.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if r.current.Load().settings.TLS != nil {
		secure := tls.Client(c, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})
		if err := secure.Handshake(); err != nil {
			t.Fatal(err)
		}
		c = secure
	}
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	var out bytes.Buffer
	out.WriteString(http2.ClientPreface)
	_ = http2.NewFramer(&out, nil).WriteSettings()
	if _, err := c.Write(out.Bytes()); err != nil {
		t.Fatal(err)
	}
	return c, http2.NewFramer(c, c)
}

// opens a stream of a request; end is whether it has no body.
func opens(t *testing.T, f *http2.Framer, stream uint32, end bool) {
	t.Helper()
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	for _, field := range [][2]string{
		{":method", "POST"}, {":scheme", "http"}, {":path", "/s/Call"}, {":authority", "x"},
		{"content-type", "application/grpc"}, {"te", "trailers"},
	} {
		_ = encoder.WriteField(hpack.HeaderField{Name: field[0], Value: field[1]})
	}
	if err := f.WriteHeaders(http2.HeadersFrameParam{
		StreamID: stream, BlockFragment: block.Bytes(), EndHeaders: true, EndStream: end,
	}); err != nil {
		t.Fatal(err)
	}
}

// until reads frames until one is of a type, or the connection has ended.
func until[F http2.Frame](t *testing.T, f *http2.Framer) (found F, err error) {
	t.Helper()
	for {
		frame, err := f.ReadFrame()
		if err != nil {
			return found, err
		}
		if found, ok := frame.(F); ok {
			return found, nil
		}
	}
}

// An idle connection of HTTP/2 gets a GOAWAY after its time, and ends a second later; a request that was on its way is
// served.
func TestIdleHTTP2IsToldToGo(t *testing.T) {
	for name, s := range map[string]Settings{"h2c": {GRPC: true}, "TLS": {TLS: secured(t)}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s.Idle = 200 * time.Millisecond
			s.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Body != http.NoBody {
					_, _ = io.Copy(io.Discard, r.Body)
				}
			})
			c, f := multiplexed(t, start(t, s))
			opens(t, f, 1, false)
			time.Sleep(2 * s.Idle) // it is not idle meanwhile
			if err := f.WriteData(1, true, nil); err != nil {
				t.Fatal(err)
			}
			if answer, err := until[*http2.HeadersFrame](t, f); err != nil || answer.StreamID != 1 {
				t.Fatalf("the first request got %v: %v", answer, err)
			}
			said, err := until[*http2.GoAwayFrame](t, f)
			if err != nil || said.LastStreamID != 1<<31-1 || said.ErrCode != http2.ErrCodeNo {
				t.Fatalf("an idle connection got %v: %v", said, err)
			}
			opens(t, f, 3, true)
			if answer, err := until[*http2.HeadersFrame](t, f); err != nil || answer.StreamID != 3 {
				t.Fatalf("a request on its way got %v: %v", answer, err)
			}
			if frame, err := until[*http2.GoAwayFrame](t, f); !errors.Is(err, io.EOF) {
				t.Errorf("the connection did not end: %v, %v", frame, err)
			}
			_ = c.Close()
		})
	}
}

// HTTP/1.1 on a server that speaks HTTP/2 as well is closed in time.
func TestIdleHTTP1BesideHTTP2IsClosed(t *testing.T) {
	const idle = 300 * time.Millisecond
	r := start(t, Settings{TLS: secured(t), Timeouts: Timeouts{Idle: idle}, Handler: http.NotFoundHandler()})
	c, err := tls.Dial("tcp", r.Addr().String(), &tls.Config{InsecureSkipVerify: true})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	in := bufio.NewReader(c)
	for range 3 {
		if _, err := io.WriteString(c, plainGet); err != nil {
			t.Fatal(err)
		}
		answer, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, answer.Body)
		time.Sleep(idle / 2)
	}
	if b, err := in.ReadByte(); !errors.Is(err, io.EOF) {
		t.Errorf("the connection did not end: %q, %v", b, err)
	}
}

// Nothing is kept of connections of HTTP/2 that ended with streams open, be they reset, closed, or in error: 40 KiB of
// each for two minutes ended the pod by its memory.
func TestEndedConnectionsAreForgotten(t *testing.T) {
	endings := map[string]func(net.Conn, *http2.Framer){
		"reset": func(c net.Conn, _ *http2.Framer) {
			if c, ok := c.(*net.TCPConn); ok {
				_ = c.SetLinger(0)
			}
			_ = c.Close()
		},
		"closed":         func(c net.Conn, _ *http2.Framer) { _ = c.Close() },
		"protocol error": func(_ net.Conn, f *http2.Framer) { _ = f.WriteRSTStream(99, http2.ErrCodeCancel) },
	}
	for way, s := range map[string]Settings{"h2c": {GRPC: true}, "TLS": {TLS: secured(t)}} {
		for ending, end := range endings {
			t.Run(way+" "+ending, func(t *testing.T) {
				begun := make(chan struct{}, 1)
				s.Handler = http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
					begun <- struct{}{}
					_, _ = io.Copy(io.Discard, r.Body)
				})
				r := start(t, s)
				// Some may still be on a stack, or have a timer that was stopped: Go's timers leave those in their heap, with
				// what they refer to, as long as they are less than a quarter of it, other connections' included.
				const connections, few = 20, 10
				var all [connections]func()
				for i := range all {
					c, f := multiplexed(t, r)
					opens(t, f, 1, false)
					<-begun
					all[i] = func() { end(c, f) }
				}
				var known []weak.Pointer[conn]
				for each := range r.Front.connections.open.All() {
					known = append(known, weak.Make(each.current().(*conn)))
				}
				for _, end := range all {
					end()
				}
				for r.Active() > 0 {
					time.Sleep(time.Millisecond)
				}
				if len(known) != connections {
					t.Fatalf("%d connections were open", len(known))
				}
				kept := 0
				for until := time.Now().Add(20 * time.Second); time.Now().Before(until); time.Sleep(20 * time.Millisecond) {
					runtime.GC()
					kept = 0
					for _, each := range known {
						if each.Value() != nil {
							kept++
						}
					}
					if kept <= few {
						break
					}
				}
				if kept > few {
					t.Errorf("%d of %d connections are kept", kept, connections)
				}
			})
		}
	}
}

// When an idle connection is told, and when it ends.
func TestIdling(t *testing.T) {
	const limit = time.Minute
	for name, test := range map[string]struct {
		limit time.Duration
		steps func(*idling, func())
		told  time.Duration // after which it gets a GOAWAY, and is closed; 0 is never
		close time.Duration
	}{
		"idle":     {limit, func(i *idling, begin func()) { begin() }, limit, limit + goAwayTime},
		"no limit": {0, func(i *idling, begin func()) { begin() }, 0, 0},
		"requests": {limit, func(i *idling, begin func()) {
			for range 10 {
				begin()
				time.Sleep(limit / 2)
				i.end()
				time.Sleep(limit)
			}
			begin()
		}, 16 * limit, 16*limit + goAwayTime},
		"a request after it was told": {limit, func(i *idling, begin func()) {
			begin()
			time.Sleep(limit + goAwayTime/2)
			i.end()
			time.Sleep(5 * limit)
			begin()
		}, limit, 6*limit + goAwayTime + goAwayTime/2},
		"ended": {limit, func(i *idling, begin func()) {
			begin()
			time.Sleep(limit / 2)
			i.stop()
			begin() // as net/http says behind the end
		}, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				var told, closed time.Duration
				i := &idling{limit: test.limit}
				test.steps(i, func() {
					i.begin(func() {
						switch i.expired() {
						case dueGoAway:
							told = time.Since(began)
						case dueClose:
							closed = time.Since(began)
							i.stop()
						}
					})
				})
				time.Sleep(time.Hour)
				synctest.Wait()
				if told != test.told || closed != test.close {
					t.Errorf("told after %v and closed after %v, want %v and %v", told, closed, test.told, test.close)
				}
				i.stop()
			})
		})
	}
}
