package tcp

import (
	"context"
	"errors"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/pkg/proxy/admission"
	"github.com/tinkerbell/stack/pkg/proxy/loop"
)

const (
	// acceptBatch is how many connections are taken before others get their turn.
	acceptBatch = 64
	// leaveBatch is how many connections leave before others get their turn: it takes some 10 us for each.
	leaveBatch = 64
	// acceptPause and acceptPauses are the least and the longest wait after a connection could not be taken.
	acceptPause, acceptPauses = 5 * time.Millisecond, time.Second
)

// youngAge is how long a connection stays in a loop, give or take a [loop.Tick], and youngBytes how much it passes on
// there in both directions. Tests change them.
var (
	youngAge   = time.Second
	youngBytes = 64 << 10
)

// nursery has the connections of a front that are young, in one loop. All of it is the loop's thread's, except open's
// and close's callers.
type nursery struct {
	front *Front
	loop  *loop.Loop
	life  context.Context

	listener loop.Handle
	closed   bool
	pause    time.Duration
	held     int // how often the next connection has been made to wait
	// The connections by age.
	oldest, youngest *young
	looking          bool
}

// open takes connections, in the loop.
func (n *nursery) open() (err error) {
	if n.closed {
		return nil
	}
	n.listener, err = n.loop.Watch(n.front.listener.fd, loop.Listening, n)
	return err
}

// close takes no more connections, and leaves the young ones to goroutines. It waits for that.
func (n *nursery) close() {
	done := make(chan struct{})
	every := func(*young) bool { return true }
	if n.loop.Do(func() {
		n.shut()
		n.release(every, func() { close(done) })
	}) {
		select {
		case <-done:
			return
		case <-n.loop.Ended():
		}
	}
	<-n.loop.Ended() // by a failure: we are alone
	n.shut()
	for n.some(every) {
	}
}

// shut takes no more connections.
func (n *nursery) shut() {
	n.closed = true
	n.loop.Release(n.front.listener.fd, n.listener)
}

// Ready implements loop.Watcher, for the listening socket. Running out of descriptors or memory is survived: the kernel
// keeps the waiting connections.
func (n *nursery) Ready(loop.Events) {
	cost := costOf(n.front.settings.Load())
	for range acceptBatch {
		if n.held < admission.HoldTimes && n.front.room.Held(cost) {
			n.held++
			n.resume(admission.HoldTime, func() {})
			return
		}
		fd, from, err := accept(n.front.listener.fd)
		switch {
		case err == nil:
			n.pause, n.held = 0, 0
			n.admit(fd, from)
		case errors.Is(err, unix.EAGAIN):
			return
		default:
			n.rest(err)
			return
		}
	}
}

// rest takes no connections for a while.
func (n *nursery) rest(err error) {
	n.pause = min(max(2*n.pause, acceptPause), acceptPauses)
	n.front.metrics.refused(refusedResources)
	pause := n.pause
	n.resume(pause, func() { // not in the loop: whoever reads the log may be slow
		n.front.log.Error("failed to accept connection", "error", err, "retry_ms", pause.Milliseconds())
	})
}

// resume takes no connections until a time is over, and calls over first then.
func (n *nursery) resume(pause time.Duration, over func()) {
	n.loop.Release(n.front.listener.fd, n.listener)
	n.listener = loop.Handle{}
	time.AfterFunc(pause, func() {
		over()
		n.loop.Do(func() {
			if err := n.open(); err != nil {
				n.rest(err)
			}
		})
	})
}

// admit begins a connection. What needs more than its own sockets to go on leaves at once.
func (n *nursery) admit(fd int, from syscall.Sockaddr) {
	f := n.front
	y := &young{
		session: session{front: f, settings: f.settings.Load(), peer: addrPortOf(from)},
		nursery: n, born: n.loop.Now(),
	}
	y.fate.begun = y.born
	y.ends[toServer] = side{young: y, fd: fd, way: toServer}
	y.ends[toClient] = side{young: y, fd: -1, way: toClient}
	if sources := y.settings.Sources; len(sources) > 0 && !contains(sources, y.peer.Addr()) {
		f.metrics.refused(refusedSource)
		resetOnClose(fd)
		_ = unix.Close(fd)
		return
	}
	if !f.add(&y.session) {
		resetOnClose(fd)
		_ = unix.Close(fd)
		return
	}
	if why := f.room.Admit(&y.lease, y, y.peer.Addr(), costOf(y.settings)); why != admission.Admitted {
		y.refuse(refusalOf(why))
		f.remove(&y.session)
		resetOnClose(fd)
		_ = unix.Close(fd)
		return
	}
	n.keep(y)
	if youngAge > 0 && y.plain() {
		y.begin()
	} else {
		y.leave(toServer, nil)
	}
}

// keep puts a connection behind the others.
func (n *nursery) keep(y *young) {
	y.older = n.youngest
	if n.youngest != nil {
		n.youngest.younger = y
	} else {
		n.oldest = y
	}
	n.youngest = y
	if !n.looking {
		n.looking = true
		n.loop.Tick(n.look)
	}
}

// drop takes a connection out.
func (n *nursery) drop(y *young) {
	if y.older != nil {
		y.older.younger = y.younger
	} else {
		n.oldest = y.younger
	}
	if y.younger != nil {
		y.younger.older = y.older
	} else {
		n.youngest = y.older
	}
	y.older, y.younger = nil, nil
}

// look lets those go that are no longer young, and those that still wait for an endpoint.
func (n *nursery) look(now time.Time) (again bool) {
	n.release(func(y *young) bool {
		age := now.Sub(y.born)
		return age >= youngAge || y.attempt != nil && age >= connectAge
	}, func() {})
	n.looking = n.oldest != nil
	return n.looking
}

// release lets connections go, and calls done behind the last. Thousands would keep all others waiting: it takes turns.
func (n *nursery) release(which func(*young) bool, done func()) {
	if !n.some(which) {
		done()
		return
	}
	n.loop.Do(func() { n.release(which, done) })
}

// some lets a few connections go, and is whether there are more.
func (n *nursery) some(which func(*young) bool) (more bool) {
	left := 0
	for y := n.oldest; y != nil; {
		next := y.younger
		if which(y) {
			if left == leaveBatch {
				return true
			}
			y.leave(toServer, nil)
			left++
		}
		y = next
	}
	return false
}
