package tcp

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/pkg/proxy/admission"
	"github.com/tinkerbell/stack/pkg/proxy/loop"
	"github.com/tinkerbell/stack/pkg/proxy/sock"
)

const (
	// acceptBatch is how many connections an accept loop takes before the event loop serves other sockets.
	acceptBatch = 64
	// handOffBatch is how many connections an accept loop hands off, at some 10 us each, before the event loop serves
	// other sockets.
	handOffBatch = 64
	// acceptPause and acceptPauses are the least and the longest wait after a connection could not be taken.
	acceptPause, acceptPauses = 5 * time.Millisecond, time.Second
)

// loopAge is how long a connection stays in an event loop, give or take a [loop.Tick], and loopBytes how much it passes
// on there in both directions. Tests change them.
var (
	loopAge   = time.Second
	loopBytes = 64 << 10
)

// acceptLoop accepts a front's connections in one event loop, and has those that the loop serves. Only the loop's
// thread uses it, but for the callers of open and close.
type acceptLoop struct {
	front *Front
	loop  *loop.Loop
	life  context.Context

	listener loop.Handle
	closed   bool
	pause    time.Duration
	holds    int // how often the next connection has been made to wait for memory or descriptors
	// The connections that the loop serves, by age.
	oldest, newest *loopSession
	ticking        bool
}

// open begins to accept connections.
func (a *acceptLoop) open() (err error) {
	if a.closed {
		return nil
	}
	a.listener, err = a.loop.Watch(a.front.listener.FD(), loop.Listening, a)
	return err
}

// close stops accepting, hands the loop's connections off to goroutines, and waits until that is done.
func (a *acceptLoop) close() {
	done := make(chan struct{})
	every := func(*loopSession) bool { return true }
	if a.loop.Do(func() {
		a.stopAccepting()
		a.handOffAll(every, func() { close(done) })
	}) {
		select {
		case <-done:
			return
		case <-a.loop.Ended():
		}
	}
	<-a.loop.Ended() // by a failure: its thread uses nothing of this any more
	a.stopAccepting()
	for a.handOffSome(every) {
	}
}

// stopAccepting leaves new connections to the kernel.
func (a *acceptLoop) stopAccepting() {
	a.closed = true
	a.loop.Release(a.front.listener.FD(), a.listener)
}

// Ready implements loop.Watcher, for the listening socket. Running out of descriptors or memory is survived: the kernel
// keeps the waiting connections.
func (a *acceptLoop) Ready(loop.Events) {
	cost := costOf(a.front.settings.Load())
	for range acceptBatch {
		if a.holds < admission.HoldTimes && a.front.room.Held(cost) {
			a.holds++
			a.pauseFor(admission.HoldTime, func() {})
			return
		}
		fd, from, err := sock.Accept(a.front.listener.FD())
		switch {
		case err == nil:
			a.pause, a.holds = 0, 0
			a.admit(fd, from)
		case errors.Is(err, unix.EAGAIN):
			return
		default:
			a.backOff(err)
			return
		}
	}
}

// backOff accepts no connections for a while, which doubles with each failure.
func (a *acceptLoop) backOff(err error) {
	a.pause = min(max(2*a.pause, acceptPause), acceptPauses)
	a.front.metrics.refused(refusedResources)
	pause := a.pause
	a.pauseFor(pause, func() { // not in the loop, which a slow log would hold up
		a.front.log.Error("failed to accept connection", "error", err, "retry_ms", pause.Milliseconds())
	})
}

// pauseFor accepts no connections for a time, and then calls over before it goes on.
func (a *acceptLoop) pauseFor(pause time.Duration, over func()) {
	a.loop.Release(a.front.listener.FD(), a.listener)
	a.listener = loop.Handle{}
	time.AfterFunc(pause, func() {
		over()
		a.loop.Do(func() {
			if err := a.open(); err != nil {
				a.backOff(err)
			}
		})
	})
}

// admit begins a session. One that needs more than its own sockets is handed off at once.
func (a *acceptLoop) admit(fd int, from netip.AddrPort) {
	f := a.front
	l := &loopSession{
		session:    session{front: f, settings: f.settings.Load(), peer: from},
		acceptLoop: a, born: a.loop.Now(),
	}
	l.fate.began = l.born
	l.ends[toServer] = side{session: l, fd: fd, direction: toServer}
	l.ends[toClient] = side{session: l, fd: -1, direction: toClient}
	if sources := l.settings.Sources; len(sources) > 0 && !contains(sources, l.peer.Addr()) {
		f.metrics.refused(refusedSource)
		sock.ResetOnClose(fd)
		_ = unix.Close(fd)
		return
	}
	if !f.add(&l.session) {
		sock.ResetOnClose(fd)
		_ = unix.Close(fd)
		return
	}
	if why := f.room.Admit(&l.lease, l, l.peer.Addr(), costOf(l.settings)); why != admission.Admitted {
		l.refuse(refusalOf(why))
		f.remove(&l.session)
		sock.ResetOnClose(fd)
		_ = unix.Close(fd)
		return
	}
	a.add(l)
	if loopAge > 0 && l.plain() {
		l.begin()
	} else {
		l.handOff(toServer, nil)
	}
}

// add appends a session to the list by age.
func (a *acceptLoop) add(l *loopSession) {
	l.older = a.newest
	if a.newest != nil {
		a.newest.younger = l
	} else {
		a.oldest = l
	}
	a.newest = l
	if !a.ticking {
		a.ticking = true
		a.loop.Tick(a.tick)
	}
}

// remove takes a session out of the list.
func (a *acceptLoop) remove(l *loopSession) {
	if l.older != nil {
		l.older.younger = l.younger
	} else {
		a.oldest = l.younger
	}
	if l.younger != nil {
		l.younger.older = l.older
	} else {
		a.newest = l.older
	}
	l.older, l.younger = nil, nil
}

// tick hands off the sessions that are older than loopAge, and those that have waited for an endpoint for connectAge.
func (a *acceptLoop) tick(now time.Time) (again bool) {
	a.handOffAll(func(l *loopSession) bool {
		age := now.Sub(l.born)
		return age >= loopAge || l.dialing != nil && age >= connectAge
	}, func() {})
	a.ticking = a.oldest != nil
	return a.ticking
}

// handOffAll hands sessions off, and calls done after the last. It goes on in batches, since thousands at once would
// keep all other sockets waiting.
func (a *acceptLoop) handOffAll(which func(*loopSession) bool, done func()) {
	if !a.handOffSome(which) {
		done()
		return
	}
	a.loop.Do(func() { a.handOffAll(which, done) })
}

// handOffSome hands one batch off, and reports whether there are more.
func (a *acceptLoop) handOffSome(which func(*loopSession) bool) (more bool) {
	left := 0
	for l := a.oldest; l != nil; {
		next := l.younger
		if which(l) {
			if left == handOffBatch {
				return true
			}
			l.handOff(toServer, nil)
			left++
		}
		l = next
	}
	return false
}
