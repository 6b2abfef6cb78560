package limit

import (
	"math"
	"net/netip"
	"sync"
	"time"
)

// sweepEvery is how often a table forgets clients, at most; a full one does ten times as often.
const sweepEvery = 5 * time.Second

// table has the rate of each client that has used some of its own, by GCRA (the generic cell rate algorithm): a request
// takes up a piece of time, and the time that is taken may run ahead of the clock by so much. A client whose time is
// not ahead is like one that was never seen, and is forgotten.
type table struct {
	each, ahead time.Duration
	most        int

	mu       sync.Mutex
	taken    map[netip.Addr]time.Duration
	swept    time.Duration
	overflow time.Duration // what is taken by those for whom there is no room
}

// newTable makes the table of a rate; nil is no limit.
func newTable(r Rate, most int) *table {
	if r.PerSecond == 0 {
		return nil
	}
	burst := r.Burst
	if burst == 0 {
		burst = max(1, int(math.Ceil(r.PerSecond)))
	}
	each := max(1, time.Duration(float64(time.Second)/r.PerSecond))
	return &table{each: each, ahead: each * time.Duration(burst-1), most: most, taken: map[netip.Addr]time.Duration{}}
}

// take uses up one request of a client, or says how long until there is one; overflow says that the client shares a
// rate, since the table is full.
func (t *table) take(client netip.Addr, now time.Duration) (wait time.Duration, overflow bool) {
	if t == nil {
		return 0, false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	taken, known := t.taken[client]
	if !known {
		if now-t.swept >= sweepEvery || len(t.taken) >= t.most && now-t.swept >= sweepEvery/10 {
			t.sweep(now)
		}
		if overflow = len(t.taken) >= t.most; overflow {
			taken = t.overflow
		}
	}
	taken = max(taken, now)
	switch wait = taken - now - t.ahead; {
	case wait > 0:
		return wait, overflow
	case overflow:
		t.overflow = taken + t.each
	default:
		t.taken[client] = taken + t.each
	}
	return 0, overflow
}

// sweep forgets the clients whose time is not ahead of the clock.
func (t *table) sweep(now time.Duration) {
	t.swept = now
	before := len(t.taken)
	for client, taken := range t.taken {
		if taken <= now {
			delete(t.taken, client)
		}
	}
	if len(t.taken) == 0 && before > 64 {
		t.taken = map[netip.Addr]time.Duration{} // a map never shrinks
	}
}
