package admission

import (
	"net/netip"
	"sync/atomic"

	"github.com/tinkerbell/stack/internal/list"
	"github.com/tinkerbell/stack/pkg/edge/limit"
)

// Charge is what one connection or request is counted for. It is a field of its holder, so that it is not allocated by
// itself. The zero Charge is nothing; all methods may be called on it.
type Charge struct {
	route    *Charges
	holder   Holder
	progress atomic.Int64 // the time of the holder's last progress, by the account's clock

	// Guarded by the account's mutex.
	client *client // nil after eviction or release
	bytes  int64
	lent   int64 // bytes of the holder's large buffers
	long   int64 // the number of its streams that may have such
	since  int64 // progress when the charge was put into the client's list
	link   list.Link[*Charge]
}

// Touch notes progress of the holder. Of a client's charges, the one without progress for longest is evicted first.
func (l *Charge) Touch() {
	if l.route != nil {
		l.progress.Store(l.route.account.now.Load())
	}
}

// little is the number of bytes by which a charge may grow under pressure, when there is no room for new charges: a
// request on a connection that was admitted is served.
const little = 48 << 10

// Grow charges more memory, in bytes. It returns another refusal than [Admitted] when there is no room, or when the
// charge has been evicted; the holder should end then.
func (l *Charge) Grow(bytes int64) Refusal {
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
		case l.client == nil: // makeRoom has evicted this charge
			why = Memory
			a.forget(c)
		case why == Admitted:
			a.add(l, bytes)
		default:
			a.bar(c)
		}
		l.route.refused[why]++
	}
	a.mu.Unlock()
	gone.evict()
	return why
}

// Loan is what a stream has of large buffers, which no charge contains. The zero Loan is none.
type Loan struct {
	size int64
	long bool // it is counted in the account's long
}

// Lend gives a stream large buffers of the largest size that fits, in place of its former ones. The sizes are in bytes
// and ascending. A size fits while memory is not short, if every long stream could have it within a part of the memory:
// so all streams have the same size, in whichever order they asked. Lend returns how many of the sizes fit; 0 is none.
// The holder calls it again as the stream gets on, and without sizes at its end.
func (l *Charge) Lend(to *Loan, sizes ...int64) (fit int) {
	if l.route == nil || !to.long && len(sizes) == 0 {
		return len(sizes)
	}
	a := l.route.account
	a.mu.Lock()
	defer a.mu.Unlock()
	if l.client == nil {
		return 0
	}
	if long := len(sizes) > 0; long != to.long {
		to.long = long
		by := int64(1)
		if !long {
			by = -1
		}
		l.long += by
		a.long += by
	}
	most, size := a.memory/lentShare, int64(0)
	for fit < len(sizes) && !a.short.Load() && sizes[fit]*a.long <= most && sizes[fit] <= most-a.lent+to.size {
		size = sizes[fit]
		fit++
	}
	l.lent += size - to.size
	a.lent += size - to.size
	to.size = size
	return fit
}

// settle takes a charge's loans off the account. The caller holds mu.
func (a *Account) settle(l *Charge) {
	a.lent -= l.lent
	a.long -= l.long
	l.lent, l.long = 0, 0
}

// Short reports whether the container has little free memory: buffers should hold as little as they can.
func (l *Charge) Short() bool { return l.route != nil && l.route.account.short.Load() }

// Shrink takes back bytes that Grow has charged.
func (l *Charge) Shrink(bytes int64) {
	if l.route == nil || bytes <= 0 {
		return
	}
	a := l.route.account
	a.mu.Lock()
	defer a.mu.Unlock()
	if l.client != nil {
		a.add(l, -min(bytes, l.bytes))
	}
}

// Move charges another client: the one in a PROXY header.
func (l *Charge) Move(to netip.Addr) Refusal {
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
		charge := l.bytes
		a.release(l)
		a.forget(c)
		// The connection was admitted before: it may use all of the memory.
		if why = a.admit(l, limit.Key(to), charge, a.memory, true, &gone); why != Admitted {
			a.settle(l)
		}
		l.route.refused[why]++
	}
	a.mu.Unlock()
	gone.evict()
	return why
}

// Release takes the whole charge back. The holder calls it at its end, after an eviction too. Further calls do nothing.
func (l *Charge) Release() {
	if l.route == nil {
		return
	}
	a := l.route.account
	a.mu.Lock()
	defer a.mu.Unlock()
	if c := l.client; c != nil {
		a.settle(l)
		a.release(l)
		a.forget(c)
	}
}

// stale reports whether the holder has been without progress for long. The caller holds the account's mutex.
func (l *Charge) stale() bool {
	return l.route.account.now.Load()-l.progress.Load() >= int64(stale)
}
