package admission

import (
	"net/netip"
	"sync/atomic"

	"github.com/tinkerbell/stack/internal/list"
	"github.com/tinkerbell/stack/pkg/edge/limit"
)

// Lease is what one connection or request has been charged. It is a part of its holder, so that it costs no allocation.
// The zero Lease has nothing; all methods may be called on it.
type Lease struct {
	route    *Route
	holder   Holder
	progress atomic.Int64 // when the holder got on last, by the account's clock

	// Guarded by the account's mutex.
	client   *client // nil when it was evicted or released
	charge   int64
	leaving  int64 // what it had when it was evicted, until it is released
	spare    int64 // of charge: what the holder can do without
	wanting  int64 // how many parts of the holder share that
	reclaims int   // how often spare was taken back
	place    int   // among the account's sparing, from 1; 0 is not there
	since    int64 // its place in the client's list: progress as it was last looked at
	link     list.Link[*Lease]
}

// Touch notes that the holder is getting on: of a client's leases, the one for which that is longest ago goes first.
func (l *Lease) Touch() {
	if l.route != nil {
		l.progress.Store(l.route.account.now.Load())
	}
}

// little is what a lease may grow by, in bytes, while pressure leaves no room for new ones: a request of what is let in
// is served.
const little = 48 << 10

// Grow charges more memory, in bytes. It is another refusal than [Admitted] when there is none, or when the lease has
// been evicted: the holder should end then.
func (l *Lease) Grow(bytes int64) Refusal {
	if l.route == nil {
		return Admitted
	}
	a := l.route.account
	var gone victims
	a.mu.Lock()
	why := Memory
	if c := l.client; c != nil {
		bound := a.room
		if bytes <= little {
			bound = a.memory
		}
		why = a.makeRoom(c, bytes, bound, &gone)
		switch {
		case l.client == nil: // it was itself what had to go
			why = Memory
			a.forget(c)
		case why == Admitted:
			l.charge += bytes
			a.add(c, bytes)
		default:
			a.bar(c)
		}
		l.route.refused[why]++
	}
	a.mu.Unlock()
	gone.evict()
	return why
}

// Spare is a part of a [Lease] that its holder can do without. The zero Spare has nothing.
type Spare struct {
	size     int64
	reclaims int  // the lease's when size was charged: what was taken back since is not charged any more
	wants    bool // it counts among those that share what there is
}

// Spare charges what the holder can do without, in place of what s had: the largest of some sizes, in bytes and
// ascending. A size has to fit for all that have asked, so that they have the same whoever came first, and in a part
// of the room, so that nothing is given up for it. It tells how many of the sizes fit; 0 is none. The holder asks
// again as it gets on, and without sizes when it is done.
func (l *Lease) Spare(s *Spare, sizes ...int64) (fit int) {
	if l.route == nil || !s.wants && len(sizes) == 0 {
		return len(sizes)
	}
	a := l.route.account
	a.mu.Lock()
	defer a.mu.Unlock()
	if l.client == nil {
		return 0
	}
	if wants := len(sizes) > 0; wants != s.wants {
		s.wants = wants
		by := int64(1)
		if !wants {
			by = -1
		}
		l.wanting += by
		a.wanting += by
	}
	var size int64
	if others := a.used - a.spared; !a.short.Load() {
		for fit < len(sizes) && others+sizes[fit]*a.wanting <= a.room/spareShare {
			size = sizes[fit]
			fit++
		}
	}
	if s.reclaims != l.reclaims {
		s.size, s.reclaims = 0, l.reclaims
	}
	more := size - s.size
	s.size = size
	a.spare(l, more)
	return fit
}

// Shrink takes memory off that Grow has charged.
func (l *Lease) Shrink(bytes int64) {
	if l.route == nil || bytes <= 0 {
		return
	}
	a := l.route.account
	a.mu.Lock()
	defer a.mu.Unlock()
	if l.client != nil {
		bytes = min(bytes, l.charge)
		l.charge -= bytes
		a.add(l.client, -bytes)
	}
}

// Move charges the lease to another client, as a PROXY header tells it.
func (l *Lease) Move(to netip.Addr) Refusal {
	if l.route == nil {
		return Admitted
	}
	a := l.route.account
	var gone victims
	a.mu.Lock()
	why := Memory
	switch c := l.client; {
	case c == nil:
	case c.addr == limit.Key(to):
		why = Admitted
	default:
		charge, spare, wanting := l.charge, l.spare, l.wanting
		a.release(l)
		a.forget(c)
		if why = a.admit(l, limit.Key(to), charge, a.memory, true, &gone); why == Admitted { // it has been let in
			l.spare, l.wanting = spare, wanting
			a.spared += spare
			a.wanting += wanting
			a.list(l)
		}
		l.route.refused[why]++
	}
	a.mu.Unlock()
	gone.evict()
	return why
}

// Release gives everything back: the holder has ended. It may be called more than once, and is called after an
// eviction.
func (l *Lease) Release() {
	if l.route == nil {
		return
	}
	a := l.route.account
	a.mu.Lock()
	defer a.mu.Unlock()
	a.leaving -= l.leaving
	l.leaving = 0
	if c := l.client; c != nil {
		a.release(l)
		a.forget(c)
	}
}

// stale is whether the holder has not got on for long. The caller holds the account's mutex.
func (l *Lease) stale() bool {
	return l.route.account.now.Load()-l.progress.Load() >= int64(stale)
}
