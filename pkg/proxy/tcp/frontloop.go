package tcp

import (
	"net/netip"
	"sync"
	"time"

	"github.com/tinkerbell/stack/internal/list"
	"github.com/tinkerbell/stack/pkg/proxy/admission"
	"github.com/tinkerbell/stack/pkg/proxy/loop"
	"github.com/tinkerbell/stack/pkg/proxy/sock"
	"github.com/tinkerbell/stack/pkg/record"
)

// frontLoop is a front's share of an event loop: its acceptor, and the sessions of the connections that it accepts.
// Only the loop's thread may use it.
type frontLoop struct {
	front    *Front
	loop     *loop.Loop
	acceptor *sock.Acceptor
	timed    list.List[*session] // that wait for a time
	ticking  bool

	afterLoop sync.Mutex // held by callers that act in place of the loop's thread, once the loop has ended
}

func newFrontLoop(f *Front, l *loop.Loop) *frontLoop {
	in := &frontLoop{front: f, loop: l}
	in.acceptor = sock.NewAcceptor(l, f.listener, in)
	return in
}

// Failed implements sock.Owner.
func (in *frontLoop) Failed(err error, pause time.Duration) {
	in.front.metrics.refusals[refusedResources].Inc()
	in.front.log.Error("failed to accept connection", "error", err, "retry_ms", pause.Milliseconds())
}

// Admit implements sock.Owner. It begins a session, within the limits on connections.
func (in *frontLoop) Admit(fd int, from netip.AddrPort) {
	f := in.front
	s := &session{front: f, settings: f.settings.Load(), in: in, peer: from, since: in.loop.Now()}
	s.draft.Exchange = record.Exchange{
		Kind: record.Stream, Route: f.config.Route, Port: f.Addr().Port(), Client: from.Addr(), Begin: s.since,
	}
	// A side's direction is that of the bytes that are read from it.
	s.client = side{session: s, direction: toServer, fd: fd}
	s.server = side{session: s, direction: toClient, fd: -1}
	switch {
	case len(s.settings.Sources) > 0 && !contains(s.settings.Sources, from.Addr()):
		f.metrics.refusals[refusedSource].Inc()
		sock.Reset(fd)
	case !f.add(s):
		sock.Reset(fd)
	default:
		if why := f.account.Admit(&s.charge, s, from.Addr(), cost); why != admission.Admitted {
			s.refuse(refusalOf(why))
			s.reset()
			return
		}
		s.begin()
	}
}

// wantTicks notes a session whose tick the loop is to call, until tick returns false.
func (in *frontLoop) wantTicks(s *session) {
	if s.timed {
		return
	}
	s.timed = true
	in.timed.Add(&s.byTime, s)
	if !in.ticking {
		in.ticking = true
		in.loop.Tick(in.tick)
	}
}

// forget is the opposite of wantTicks.
func (in *frontLoop) forget(s *session) {
	if s.timed {
		s.timed = false
		in.timed.Remove(&s.byTime)
	}
}

func (in *frontLoop) tick(now time.Time) (again bool) {
	for s := in.timed.First(); s != nil; {
		next := s.byTime.Next()
		if !s.tick(now) {
			in.forget(s)
		}
		s = next
	}
	in.ticking = in.timed.Len() > 0
	return in.ticking
}

// The measured cost of a session, in bytes: two sockets, and the memory that the garbage collector has not freed yet.
var cost = admission.Cost{Memory: 20 << 10, Descriptors: 2}

func refusalOf(why admission.Refusal) refusal {
	switch why {
	case admission.Descriptors:
		return refusedDescriptors
	case admission.ClientShare:
		return refusedShare
	default:
		return refusedMemory
	}
}
