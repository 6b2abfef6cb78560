package web

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/tinkerbell/stack/pkg/proxy/http1"
	"github.com/tinkerbell/stack/pkg/proxy/loop"
)

// loopConns are the connections that loops have.
func (r running) loopConns() (all []*http1.Conn) {
	for c := range r.Front.connections.open.All() {
		if plain, ok := c.current().(*loopConn); ok {
			all = append(all, plain.http1)
		}
	}
	return all
}

// eventually waits until something is so.
func eventually(t *testing.T, what string, so func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !so(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not so in time: %s", what)
		}
	}
}

// counts waits until so many requests that went well are counted: the client has its answer before that.
func (r running) counts(t *testing.T, want float64) {
	t.Helper()
	eventually(t, fmt.Sprintf("%v requests are counted", want), func() bool {
		return testutil.ToFloat64(r.requests.WithLabelValues("r", "200")) == want
	})
}

// settled is when nothing is under way any more.
func (r running) settled() bool {
	return testutil.ToFloat64(r.flight.WithLabelValues("r")) == 0
}

// Loops that end before the front, which they should not: the front still ends, and gives everything back.
func TestLoopsEnd(t *testing.T) {
	asked := make(chan struct{})
	addr := backend(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			close(asked)
			<-r.Context().Done()
		}
		_, _ = io.WriteString(w, "ok")
	})
	g := loop.NewGroup(1)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- g.Run(ctx) }()
	p := pool(addr)
	r := startOn(t, Settings{Pool: p, Drain: time.Millisecond}, io.Discard, g)
	idle, busy := r.talk(t), r.talk(t)
	idle.ask(t, plainGet)
	_, _ = io.WriteString(busy.Conn, "GET /slow HTTP/1.1\r\nHost: h\r\n\r\n")
	<-asked
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if err := r.stop(); err != nil {
		t.Error(err)
	}
	for name, c := range map[string]talk{"idle": idle, "busy": busy} {
		if _, err := c.Peek(1); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("the %s connection got %v, want its end", name, err)
		}
	}
	if s := p.Status()[0]; s.Active != 0 {
		t.Errorf("the endpoint has %d requests", s.Active)
	}
}

// Connections that are closed from both sides, and by a drain, at the same moment: no descriptor that somebody else has
// by now is closed with them, and none is forgotten.
func TestLoopDescriptors(t *testing.T) {
	addr := backend(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") })
	before := sockets(t)
	r := start(t, Settings{Pool: pool(addr)})
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	var group sync.WaitGroup
	for i := range 8 {
		group.Go(func() { // clients
			for ctx.Err() == nil {
				conn, err := net.Dial("tcp", r.Addr().String())
				if err != nil {
					t.Error(err)
					return
				}
				reader := bufio.NewReader(conn)
				for range i % 4 {
					_, _ = io.WriteString(conn, []string{plainGet, plainGet + plainGet, plainGet[:9], ways["pool"]}[i%4])
					if i%4 == 2 {
						break
					}
					response, err := http.ReadResponse(reader, nil)
					if err != nil {
						break // closed by us
					}
					if body, err := io.ReadAll(response.Body); err == nil && string(body) != "ok" {
						t.Errorf("got %q", body)
					}
				}
				_ = conn.Close()
			}
		})
	}
	for range 4 {
		group.Go(func() { // those who get the descriptors next
			for ctx.Err() == nil {
				from, to, err := os.Pipe()
				if err != nil {
					t.Error(err)
					return
				}
				b := make([]byte, 2)
				if _, err := to.WriteString("ok"); err != nil {
					t.Errorf("somebody has closed a pipe: %v", err)
				}
				if _, err := io.ReadFull(from, b); err != nil || string(b) != "ok" {
					t.Errorf("somebody has read from a pipe: %q, %v", b, err)
				}
				if err := errors.Join(from.Close(), to.Close()); err != nil {
					t.Errorf("somebody has closed a pipe: %v", err)
				}
			}
		})
	}
	group.Go(func() {
		for ctx.Err() == nil {
			r.endIdle(r.current.Load().server, time.Now().Add(time.Hour))
			r.Front.connections.closeAll(r.current.Load().server)
			time.Sleep(time.Millisecond)
		}
	})
	group.Wait()
	if err := r.stop(); err != nil {
		t.Error(err)
	}
	if n := testutil.ToFloat64(r.flight.WithLabelValues("r")); n != 0 {
		t.Errorf("%v requests in flight", n)
	}
	eventually(t, "all descriptors are closed", func() bool { return sockets(t) <= before })
}

// sockets is how many of this process's descriptors are.
func sockets(t *testing.T) (n int) {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, one := range all {
		if to, err := os.Readlink("/proc/self/fd/" + one.Name()); err == nil && strings.HasPrefix(to, "socket:") {
			n++
		}
	}
	return n
}
