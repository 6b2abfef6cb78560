package http1

import (
	"errors"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/pkg/proxy/loop"
	"github.com/tinkerbell/stack/pkg/proxy/sock"
)

// Engine has the clients' connections of one owner in one loop, and the idle connections to endpoints. It belongs to
// the loop's thread; other goroutines use [Engine.Soon].
type Engine struct {
	loop    *loop.Loop
	conns   []*Conn
	pool    *upstreamPool // of the route that was served last
	ticking bool
	open    sync.WaitGroup // connections, and goroutines that load files

	mu sync.Mutex // serializes Soon's callers after the loop has ended
}

// New makes an engine for a loop, which is to run until [Engine.Wait] has returned.
func New(l *loop.Loop) *Engine { return &Engine{loop: l} }

// Wait waits until all connections of clients are closed or handed off. No connection may begin meanwhile.
func (e *Engine) Wait() { e.open.Wait() }

// Soon has the loop call f. If the loop has ended, Soon calls f itself; owners keep the loop running until Wait has
// returned.
func (e *Engine) Soon(f func()) {
	if e.loop.Do(f) {
		return
	}
	<-e.loop.Ended() // it may still be doing what it was asked before
	e.mu.Lock()
	defer e.mu.Unlock()
	f()
}

// NewConn wraps an accepted socket. The caller must call [Conn.Add] next, in the loop's thread.
func (e *Engine) NewConn(fd int, peer netip.Addr) *Conn {
	return &Conn{
		engine: e, client: socket{fd: fd}, peer: peer.WithZone(""), state: silent, between: silent, since: e.loop.Now(),
	}
}

// hasEnded reports whether the loop serves nothing any more.
func (e *Engine) hasEnded() bool {
	select {
	case <-e.loop.Ended():
		return true
	default:
		return false
	}
}

func (e *Engine) add(c *Conn) {
	e.open.Add(1)
	c.place = len(e.conns)
	e.conns = append(e.conns, c)
	if !e.ticking {
		e.ticking = true
		e.loop.Tick(e.tick)
	}
}

func (e *Engine) remove(c *Conn) {
	last := e.conns[len(e.conns)-1]
	e.conns[c.place], last.place = last, c.place
	e.conns[len(e.conns)-1] = nil
	e.conns = e.conns[:len(e.conns)-1]
}

// End has the loop close the connections of some owners that wait for their next request; silentToo, also those on
// which no byte has come. A request that has come meanwhile is still served. It does not wait.
func (e *Engine) End(which func(Owner) bool, silentToo bool) {
	e.Soon(func() {
		for i := len(e.conns) - 1; i >= 0; i-- { // a connection that leaves is replaced by the last
			c := e.conns[i]
			if c.state != waiting && (c.state != silent || !silentToo) || !which(c.owner) {
				continue
			}
			if _, err := sock.Peek(c.client.fd); errors.Is(err, unix.EAGAIN) {
				c.close()
			}
		}
	})
}

// tick ends what takes too long.
func (e *Engine) tick(now time.Time) (again bool) {
	for i := len(e.conns) - 1; i >= 0; i-- { // a connection that leaves is replaced by the last
		e.conns[i].tick(now)
	}
	left := 0
	if e.pool != nil {
		left = e.pool.sweep(now)
	}
	e.ticking = len(e.conns)+left > 0
	return e.ticking
}
