package web

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/tinkerbell/stack/pkg/proxy/admission"
	"github.com/tinkerbell/stack/pkg/proxy/shaper"
)

// giveUp evicts all connections of a front, and waits until they have ended.
func giveUp(t *testing.T, r running) {
	t.Helper()
	all := slices.Collect(r.Front.connections.open.All())
	if len(all) == 0 {
		t.Fatal("no connection is open")
	}
	for _, c := range all {
		c.Evict()
	}
	for until := time.Now().Add(20 * time.Second); r.Active() > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(until) {
			t.Fatalf("%d of %d connections are still there", r.Active(), len(all))
		}
	}
}

// asks opens a connection with some words, and waits until they have been taken up.
func asks(t *testing.T, r running, words string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", r.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if _, err := io.WriteString(c, words); err != nil {
		t.Fatal(err)
	}
	time.Sleep(200 * time.Millisecond)
	return c
}

// What is given up ends soon, whatever it waits for.
func TestEvictedConnectionsEnd(t *testing.T) {
	t.Parallel()
	const withBody = "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\nx"
	limits := admission.Limits{Memory: 1 << 30, Descriptors: 10000}
	slow := backend(t, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // or net/http would not notice that the proxy has gone
		<-r.Context().Done()
	})
	for name, words := range map[string]string{"plain": plainGet, "body": withBody} {
		t.Run("endpoint that does not answer/"+name, func(t *testing.T) {
			r := roomy(t, Settings{Pool: pool(slow)}, limits)
			asks(t, r, words)
			giveUp(t, r)
		})
	}
	t.Run("rate", func(t *testing.T) {
		s := &shaper.Shaper{}
		s.SetRate(8000)
		large := backend(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, 1<<20)) })
		r := roomy(t, Settings{Pool: pool(large), Shaper: s, Rate: 8000}, limits)
		for range 4 {
			asks(t, r, plainGet)
		}
		giveUp(t, r)
	})
	t.Run("upgraded, and the endpoint does not read", func(t *testing.T) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		go func() {
			c, err := l.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { _ = c.Close() })
			_, _ = http.ReadRequest(bufio.NewReader(c))
			_, _ = io.WriteString(c, "HTTP/1.1 101 x\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
		}()
		r := roomy(t, Settings{Pool: pool(l.Addr().String())}, limits)
		c := asks(t, r, "GET / HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
		if _, err := http.ReadResponse(bufio.NewReader(c), nil); err != nil {
			t.Fatal(err)
		}
		_ = c.SetWriteDeadline(time.Now().Add(time.Second))
		for err == nil { // until all buffers are full
			_, err = c.Write(make([]byte, 1<<20))
		}
		giveUp(t, r)
	})
}

// An endpoint that a client waited for is not blamed when the client is given up, nor asked again.
func TestEvictionBlamesNobody(t *testing.T) {
	t.Parallel()
	for name, kept := range map[string]bool{"new connection": false, "kept connection": true} {
		t.Run(name, func(t *testing.T) {
			asked := make(chan struct{}, 100)
			p := pool(backend(t, func(_ http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/quick" {
					return
				}
				asked <- struct{}{}
				select {
				case <-r.Context().Done():
				case <-time.After(30 * time.Second):
				}
			}))
			r := startBy(t, Config{
				Listen: netip.MustParseAddrPort("127.0.0.1:0"), Settings: Settings{Pool: p},
				Account: admission.New(admission.Limits{Memory: 1 << 30, Descriptors: 10000}, nil),
			})
			const times = 4
			for range times {
				words := "GET /slow HTTP/1.1\r\nHost: h\r\n\r\n"
				if kept {
					c := asks(t, r, "GET /quick HTTP/1.1\r\nHost: h\r\n\r\n")
					_, _ = io.WriteString(c, words)
				} else {
					asks(t, r, words)
				}
				<-asked
				time.Sleep(100 * time.Millisecond)
				giveUp(t, r)
			}
			if n := len(asked); n > 0 {
				t.Errorf("the endpoint was asked again %d times", n)
			}
			if n := p.Status()[0].Failures; n > 0 {
				t.Errorf("%d failures are the endpoint's, want 0", n)
			}
		})
	}
}
