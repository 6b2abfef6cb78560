package limit

import (
	"hash/maphash"
	"math"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

// interval is a rate as GCRA (the generic cell rate algorithm) has it: each request takes up a piece of time, and
// the time that is taken may run ahead of the clock by so much.
type interval struct {
	each  time.Duration // 0: no limit
	ahead time.Duration
}

func intervalOf(r Rate) interval {
	if r.PerSecond == 0 {
		return interval{}
	}
	burst := r.Burst
	if burst == 0 {
		burst = max(1, int(math.Ceil(r.PerSecond)))
	}
	each := max(1, time.Duration(float64(time.Second)/r.PerSecond))
	return interval{each: each, ahead: each * time.Duration(burst-1)}
}

// next is the time that is taken after one more request, or how long to wait for it.
func (i interval) next(taken, now time.Duration) (after, wait time.Duration) {
	taken = max(taken, now)
	if wait := taken - now - i.ahead; wait > 0 {
		return taken, wait
	}
	return taken + i.each, 0
}

// bucket is a rate of its own.
type bucket struct {
	rate  interval
	taken atomic.Int64
}

// take uses up one request, or says how long until there is one.
func (b *bucket) take(now time.Duration) time.Duration {
	if b.rate.each == 0 {
		return 0
	}
	for {
		taken := b.taken.Load()
		after, wait := b.rate.next(time.Duration(taken), now)
		if wait > 0 {
			return wait
		}
		if b.taken.CompareAndSwap(taken, int64(after)) {
			return 0
		}
	}
}

const (
	shards     = 64
	sweepEvery = 5 * time.Second
)

// table has a bucket for each client that has used some of its rate. A client with a full bucket is like one that
// was never seen, and is forgotten.
type table struct {
	rate  interval
	seed  maphash.Seed
	parts [shards]part
}

type part struct {
	mu       sync.Mutex
	most     int
	taken    map[netip.Addr]time.Duration
	swept    time.Duration
	overflow time.Duration // the bucket of those for whom there is no room
}

func newTable(rate interval, most int) *table {
	t := &table{rate: rate, seed: maphash.MakeSeed()}
	for i := range t.parts {
		t.parts[i].most = max(1, most/shards)
		t.parts[i].taken = map[netip.Addr]time.Duration{}
	}
	return t
}

// take uses up one request of a client, or says how long until there is one; overflow says that the client shares a
// bucket, since the table is full.
func (t *table) take(who netip.Addr, now time.Duration) (wait time.Duration, overflow bool) {
	p := &t.parts[maphash.Comparable(t.seed, who)%shards]
	p.mu.Lock()
	defer p.mu.Unlock()
	taken, known := p.taken[who]
	if !known {
		full := len(p.taken) >= p.most
		if now-p.swept >= sweepEvery || full && now-p.swept >= sweepEvery/10 {
			p.sweep(now)
			full = len(p.taken) >= p.most
		}
		if full {
			p.overflow, wait = t.rate.next(p.overflow, now)
			return wait, true
		}
	}
	if taken, wait = t.rate.next(taken, now); wait == 0 {
		p.taken[who] = taken
	}
	return wait, false
}

// sweep forgets the clients whose buckets are full.
func (p *part) sweep(now time.Duration) {
	p.swept = now
	before := len(p.taken)
	for who, taken := range p.taken {
		if taken <= now {
			delete(p.taken, who)
		}
	}
	if len(p.taken) == 0 && before > 64 {
		p.taken = map[netip.Addr]time.Duration{} // a map never shrinks
	}
}

func (t *table) len() int {
	n := 0
	for i := range t.parts {
		p := &t.parts[i]
		p.mu.Lock()
		n += len(p.taken)
		p.mu.Unlock()
	}
	return n
}
