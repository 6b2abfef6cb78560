package admission

import (
	"net/netip"
	"sync/atomic"

	"github.com/tinkerbell/stack/internal/list"
	"github.com/tinkerbell/stack/pkg/edge/limit"
)

// Lease is the charge of one connection or request. It is a field of its holder, so that it is not allocated by itself.
// The zero Lease has no charge; all methods may be called on it.
type Lease struct {
	route    *Route
	holder   Holder
	progress atomic.Int64 // the time of the holder's last progress, by the account's clock

	// Guarded by the account's mutex.
	client   *client // nil after eviction or release
	charge   int64
	leaving  int64 // the charge at eviction, until the release
	spare    int64 // the part of charge that the holder can do without
	wanting  int64 // the number of the holder's spares
	reclaims int   // how often the account took spare back
	since    int64 // progress when the lease was put into the client's list
	link     list.Link[*Lease]
}

// Touch notes progress of the holder. Of a client's leases, the one without progress for longest is evicted first.
func (l *Lease) Touch() {
	if l.route != nil {
		l.progress.Store(l.route.account.now.Load())
	}
}

// little is the number of bytes by which a lease may grow under pressure, when there is no room for new leases: a
// request on a connection that was admitted is served.
const little = 48 << 10

// Grow charges more memory, in bytes. It returns another refusal than [Admitted] when there is no room, or when the
// lease has been evicted; the holder should end then.
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
		case l.client == nil: // makeRoom has evicted this lease
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

// Spare is a part of a [Lease]'s charge that its holder can do without: larger buffers. The zero Spare has no charge.
type Spare struct {
	size     int64
	reclaims int  // the lease's reclaims when size was charged; if there was one since, size is not charged any more
	wants    bool // it is counted in the account's wanting
}

// Spare charges s with the largest size that fits, in place of its former one. The sizes are in bytes and ascending. A
// size fits if every spare of the account could have it within a part of the memory: so all spares are equal, in
// whichever order the holders asked, and no lease is evicted for them. Spare returns how many of the sizes fit; 0 is
// none. The holder calls it again with each progress, and without sizes at the end.
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
	if s.reclaims != l.reclaims {
		s.size, s.reclaims = 0, l.reclaims
	}
	var size int64
	bound := min(a.memory/spareShare-a.spared, a.memory-a.used) + s.size
	for fit < len(sizes) && !a.short.Load() && sizes[fit]*a.wanting <= a.memory/spareShare && sizes[fit] <= bound {
		size = sizes[fit]
		fit++
	}
	a.spare(l, size-s.size)
	s.size = size
	return fit
}

// Short reports whether the container has little free memory: buffers should hold as little as they can.
func (l *Lease) Short() bool { return l.route != nil && l.route.account.short.Load() }

// Shrink takes back bytes that Grow has charged.
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

// Move charges the lease to another client: the one in a PROXY header.
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
		// The connection was admitted before: it may use all of the memory.
		if why = a.admit(l, limit.Key(to), charge, a.memory, true, &gone); why == Admitted {
			l.charge -= spare
			a.add(l.client, -spare)
			a.spare(l, spare)
			l.wanting = wanting
			a.wanting += wanting
		}
		l.route.refused[why]++
	}
	a.mu.Unlock()
	gone.evict()
	return why
}

// Release takes the whole charge back. The holder calls it at its end, after an eviction too. Further calls do nothing.
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

// stale reports whether the holder has been without progress for long. The caller holds the account's mutex.
func (l *Lease) stale() bool {
	return l.route.account.now.Load()-l.progress.Load() >= int64(stale)
}
