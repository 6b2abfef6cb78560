package web

import (
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/pkg/proxy/loop"
	"github.com/tinkerbell/stack/pkg/proxy/sock"
)

// frontLoop is a front's share of a loop: its acceptor, clients' connections, and those to endpoints. Only the loop's
// thread uses it; other goroutines ask for something by soon.
type frontLoop struct {
	front    *Front
	loop     *loop.Loop
	acceptor *sock.Acceptor
	conns    []*loopConn
	pool     *loopPool // of the upstreams that were used last
	ticking  bool

	mu sync.Mutex // of goroutines that act in the place of the loop, when it has ended
}

func (f *Front) loopsOf(loops []*loop.Loop) (made []*frontLoop) {
	for _, l := range loops {
		in := &frontLoop{front: f, loop: l}
		in.acceptor = sock.NewAcceptor(l, f.listener.socket, in)
		made = append(made, in)
	}
	return made
}

// soon has the loop call f. Where the loop has ended, which it should not before the front, f is called here.
func (in *frontLoop) soon(f func()) {
	if in.loop.Do(f) {
		return
	}
	<-in.loop.Ended() // it may still be doing what it was asked before
	in.mu.Lock()
	defer in.mu.Unlock()
	f()
}

// hasEnded reports whether the loop serves nothing any more.
func (in *frontLoop) hasEnded() bool {
	select {
	case <-in.loop.Ended():
		return true
	default:
		return false
	}
}

// stopAccepting leaves new connections to the kernel. It is called from outside of the loop, and waits.
func (in *frontLoop) stopAccepting() {
	done := make(chan struct{})
	in.soon(func() {
		in.acceptor.Stop()
		close(done)
	})
	<-done
}

// Held implements sock.Owner.
func (in *frontLoop) Held() bool {
	l := in.front.listener
	return l.room.Held(costOf(l.settings.Load()))
}

// Failed implements sock.Owner.
func (in *frontLoop) Failed(err error, pause time.Duration) {
	in.front.metrics.refused("resources")
	in.front.log.Error("failed to accept connection", "error", err, "retry_ms", pause.Milliseconds())
}

func (in *frontLoop) add(s *loopConn) {
	s.place = len(in.conns)
	in.conns = append(in.conns, s)
	if !in.ticking {
		in.ticking = true
		in.loop.Tick(in.tick)
	}
}

func (in *frontLoop) remove(s *loopConn) {
	last := in.conns[len(in.conns)-1]
	in.conns[s.place], last.place = last, s.place
	in.conns[len(in.conns)-1] = nil
	in.conns = in.conns[:len(in.conns)-1]
}

// tick ends or hands off what takes too long.
func (in *frontLoop) tick(now time.Time) (again bool) {
	for i := len(in.conns) - 1; i >= 0; i-- { // a connection that leaves is replaced by the last
		in.conns[i].tick(now)
	}
	left := 0
	if in.pool != nil {
		left = in.pool.sweep(now)
	}
	in.ticking = len(in.conns)+left > 0
	return in.ticking
}

// close closes a descriptor that the loop may watch.
func (in *frontLoop) close(fd int, handle loop.Handle) {
	in.loop.Forget(handle)
	_ = unix.Close(fd)
}
