package web

import (
	"errors"
	"net"
	"net/http"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/pkg/proxy/admission"
	"github.com/tinkerbell/stack/pkg/proxy/loop"
	"github.com/tinkerbell/stack/pkg/proxy/sock"
)

const (
	// acceptBatch is how many connections are accepted before the loop's other sockets have their turn.
	acceptBatch = 64
	// acceptPause and acceptPauses are the least and the longest wait after a connection could not be accepted.
	acceptPause, acceptPauses = 5 * time.Millisecond, time.Second
)

var errLoopEnded = errors.New("the event loop has ended")

// acceptor accepts the front's connections in one loop. All of it belongs to the loop's thread.
type acceptor struct {
	in     *frontLoop
	handle loop.Handle
	closed bool
	pause  time.Duration
	held   int // how often the next connection has been made to wait for memory
}

// open begins to accept.
func (a *acceptor) open() (err error) {
	if a.closed {
		return nil
	}
	a.handle, err = a.in.loop.Watch(a.in.front.listener.socket.FD(), loop.Listening, a)
	return err
}

// close accepts no more connections. It is called from outside of the loop, and waits.
func (a *acceptor) close() {
	done := make(chan struct{})
	a.in.soon(func() {
		a.closed = true
		a.in.release(a.in.front.listener.socket.FD(), a.handle)
		close(done)
	})
	<-done
}

// Ready implements loop.Watcher.
func (a *acceptor) Ready(loop.Events) {
	l := a.in.front.listener
	cost := costOf(l.settings.Load())
	for range acceptBatch {
		if a.held < admission.HoldTimes && l.room.Held(cost) {
			a.held++
			a.resume(admission.HoldTime, func() {})
			return
		}
		fd, peer, err := sock.Accept(l.socket.FD())
		switch {
		case err == nil:
			a.pause, a.held = 0, 0
			a.in.admit(fd, peer)
		case errors.Is(err, unix.EAGAIN):
			return
		default:
			a.rest(err)
			return
		}
	}
}

// rest accepts nothing for a while, after an error: without descriptors or memory the kernel keeps the connections.
func (a *acceptor) rest(err error) {
	a.pause = min(max(2*a.pause, acceptPause), acceptPauses)
	f, pause := a.in.front, a.pause
	f.metrics.refused("resources")
	a.resume(pause, func() { // not in the loop: the log may have to be waited for
		f.log.Error("failed to accept connection", "error", err, "retry_ms", pause.Milliseconds())
	})
}

// resume accepts again after a time, and calls before then, outside of the loop.
func (a *acceptor) resume(pause time.Duration, before func()) {
	a.in.release(a.in.front.listener.socket.FD(), a.handle)
	a.handle = loop.Handle{}
	time.AfterFunc(pause, func() {
		before()
		a.in.loop.Do(func() {
			if err := a.open(); err != nil {
				a.rest(err)
			}
		})
	})
}

// connQueue is the listener of a net/http server: connections that were accepted elsewhere.
type connQueue struct {
	addr net.Addr

	mu      sync.Mutex
	some    sync.Cond
	waiting []net.Conn
	closed  bool
}

func newConnQueue(addr net.Addr) *connQueue {
	q := &connQueue{addr: addr}
	q.some.L = &q.mu
	return q
}

// push gives the server a connection; false where the server has ended. It does not wait.
func (q *connQueue) push(c net.Conn) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.closed {
		q.waiting = append(q.waiting, c)
		q.some.Signal()
	}
	return !q.closed
}

// Accept implements net.Listener.
func (q *connQueue) Accept() (net.Conn, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.waiting) == 0 && !q.closed {
		q.some.Wait()
	}
	if q.closed {
		return nil, http.ErrServerClosed
	}
	c := q.waiting[0]
	q.waiting[0] = nil
	q.waiting = q.waiting[1:]
	return c, nil
}

// Close implements net.Listener. Connections that the server has not accepted are closed.
func (q *connQueue) Close() error {
	q.mu.Lock()
	left := q.waiting
	q.waiting, q.closed = nil, true
	q.some.Broadcast()
	q.mu.Unlock()
	for _, c := range left {
		_ = c.Close()
	}
	return nil
}

// Addr implements net.Listener.
func (q *connQueue) Addr() net.Addr { return q.addr }
