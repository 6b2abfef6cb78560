package tcp

import (
	"context"
	"net/netip"
	"time"

	"github.com/tinkerbell/stack/internal/list"
	"github.com/tinkerbell/stack/pkg/proxy/admission"
	"github.com/tinkerbell/stack/pkg/proxy/loop"
	"github.com/tinkerbell/stack/pkg/proxy/sock"
)

// handOffBatch is how many connections are handed off at a time, at some 10 us each, before the event loop serves its
// other sockets.
const handOffBatch = 64

// loopAge is how long a connection stays in an event loop, give or take a [loop.Tick], and loopBytes how many bytes are
// read of it there, in both directions. Tests change them.
var (
	loopAge   = time.Second
	loopBytes = 64 << 10
)

// acceptLoop accepts a front's connections in one event loop, and keeps the sessions that the loop serves. Only the
// loop's thread may use it, but for close.
type acceptLoop struct {
	front    *Front
	loop     *loop.Loop
	life     context.Context
	acceptor *sock.Acceptor
	sessions list.List[*loopSession] // that the loop serves, the oldest first
	ticking  bool
}

func (f *Front) newAcceptLoop(life context.Context, l *loop.Loop) *acceptLoop {
	a := &acceptLoop{front: f, loop: l, life: life}
	a.acceptor = sock.NewAcceptor(l, f.listener, a)
	return a
}

// close stops accepting, hands the loop's connections off to goroutines, and waits until that is done.
func (a *acceptLoop) close() {
	defer a.acceptor.Wait()
	done := make(chan struct{})
	every := func(*loopSession) bool { return true }
	if a.loop.Do(func() {
		a.acceptor.Stop()
		a.handOffAll(every, func() { close(done) })
	}) {
		select {
		case <-done:
			return
		case <-a.loop.Ended():
		}
	}
	<-a.loop.Ended() // it has failed, and its thread uses the sessions no longer
	a.acceptor.Stop()
	for a.handOffSome(every) {
	}
}

// Held implements sock.Owner.
func (a *acceptLoop) Held() bool { return a.front.room.Held(costOf(a.front.settings.Load())) }

// Failed implements sock.Owner.
func (a *acceptLoop) Failed(err error, pause time.Duration) {
	a.front.metrics.refused(refusedResources)
	a.front.log.Error("failed to accept connection", "error", err, "retry_ms", pause.Milliseconds())
}

// Admit implements sock.Owner. It begins a session. One that needs more than its own sockets is handed off at once.
func (a *acceptLoop) Admit(fd int, from netip.AddrPort) {
	f := a.front
	l := &loopSession{
		session:    session{front: f, settings: f.settings.Load(), peer: from},
		acceptLoop: a, born: a.loop.Now(),
	}
	l.outcome.began = l.born
	l.ends[toServer] = side{session: l, fd: fd, direction: toServer}
	l.ends[toClient] = side{session: l, fd: -1, direction: toClient}
	if !l.admitted() {
		sock.Reset(fd)
		return
	}
	a.add(l)
	if loopAge > 0 && l.plain() {
		l.begin()
	} else {
		l.handOff(toServer, nil)
	}
}

// admitted applies the limits on connections to a new session, and counts a refusal.
func (l *loopSession) admitted() bool {
	f, s, peer := l.front, l.settings, l.peer.Addr()
	if len(s.Sources) > 0 && !contains(s.Sources, peer) {
		f.metrics.refused(refusedSource)
		return false
	}
	if !f.add(&l.session) {
		return false
	}
	if why := f.room.Admit(&l.lease, l, peer, costOf(s)); why != admission.Admitted {
		l.refuse(refusalOf(why))
		f.remove(&l.session)
		return false
	}
	return true
}

// add appends a session to those that the loop serves.
func (a *acceptLoop) add(l *loopSession) {
	a.sessions.Add(&l.byAge, l)
	if !a.ticking {
		a.ticking = true
		a.loop.Tick(a.tick)
	}
}

// tick hands off the sessions that are older than loopAge, and those that have waited for an endpoint for connectAge.
func (a *acceptLoop) tick(now time.Time) (again bool) {
	a.handOffAll(func(l *loopSession) bool {
		age := now.Sub(l.born)
		return age >= loopAge || l.dialing != nil && age >= connectAge
	}, func() {})
	a.ticking = a.sessions.Len() > 0
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
	for l := a.sessions.First(); l != nil; {
		next := l.byAge.Next()
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
