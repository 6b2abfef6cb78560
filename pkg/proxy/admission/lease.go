package admission

import (
	"net/netip"
	"sync/atomic"

	"github.com/tinkerbell/stack/pkg/edge/limit"
)

// Lease is what one connection or request has been charged. It is a part of its holder, so that it costs no allocation.
// The zero Lease has nothing; all methods may be called on it.
type Lease struct {
	route    *Route
	holder   Holder
	progress atomic.Int64 // when the holder got on last, by the account's clock

	// Guarded by the account's mutex.
	client      *client // nil when it was evicted or released
	charge      int64
	since       int64 // its place in the client's list: progress as it was last looked at
	older, next *Lease
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
		}
		l.route.refused[why]++
	}
	a.mu.Unlock()
	gone.evict()
	return why
}

// Spare is Grow for what the holder can do without: only where most of the room is left to others, so that nothing is
// given up for it. It is no refusal where there is none.
func (l *Lease) Spare(bytes int64) bool {
	if l.route == nil {
		return true
	}
	a := l.route.account
	if a.short.Load() {
		return false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if l.client == nil || a.used+bytes > a.room/spareShare {
		return false
	}
	l.charge += bytes
	a.add(l.client, bytes)
	return true
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
		charge := l.charge
		a.release(l)
		a.forget(c)
		why = a.admit(l, limit.Key(to), charge, a.memory, &gone) // it has been let in
		l.route.refused[why]++
	}
	a.mu.Unlock()
	gone.evict()
	return why
}

// Release gives everything back. It may be called more than once, and after an eviction.
func (l *Lease) Release() {
	if l.route == nil {
		return
	}
	a := l.route.account
	a.mu.Lock()
	defer a.mu.Unlock()
	if c := l.client; c != nil {
		a.release(l)
		a.forget(c)
	}
}

// stale is whether the holder has not got on for long. The caller holds the account's mutex.
func (l *Lease) stale() bool {
	return l.route.account.now.Load()-l.progress.Load() >= int64(stale)
}
