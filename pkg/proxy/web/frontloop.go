package web

import (
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/pkg/proxy/loop"
)

// frontLoop is a front's share of a loop: its acceptor, clients' connections, and those to endpoints. It belongs to the
// loop's thread; other goroutines ask for something by soon.
type frontLoop struct {
	front    *Front
	loop     *loop.Loop
	acceptor acceptor
	conns    []*loopConn
	pool     *loopPool // of the upstreams that were used last
	ticking  bool

	mu    sync.Mutex
	ended bool // the loop has ended: the goroutine that holds mu acts in its place
}

func (f *Front) loopsOf(loops []*loop.Loop) (made []*frontLoop) {
	for _, l := range loops {
		in := &frontLoop{front: f, loop: l}
		in.acceptor.in = in
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
	in.ended = true
	f()
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

// forget closes a descriptor that the loop has watched.
func (in *frontLoop) forget(fd int, handle loop.Handle) {
	if !in.ended {
		in.loop.Forget(handle)
	}
	_ = unix.Close(fd)
}

// release has the loop watch a descriptor no longer.
func (in *frontLoop) release(fd int, handle loop.Handle) {
	if !in.ended && handle != (loop.Handle{}) {
		in.loop.Release(fd, handle)
	}
}
