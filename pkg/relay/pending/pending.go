// Package pending remembers the requests that wait for replies.
package pending

import (
	"hash/maphash"
	"sync"
	"time"
)

// Table remembers requests: K identifies a transaction, V is its origin. Neither should hold pointers: the table is
// large, and the garbage collector need not look into it then. Memory is bounded: a new request takes the
// place of the oldest when all places are taken, and none lives longer than the expiry. A request stays after its first
// reply, since there may be a reply of every server.
//
// Times are nanoseconds of the caller's clock.
type Table[K comparable, V any] struct {
	mu      sync.Mutex
	seed    maphash.Seed // secret, so that no sender can aim at one bucket
	expiry  int64
	entries []entry[K, V] // entries[0] is unused: index 0 ends chains
	buckets []int32
	oldest  int32 // the place that is taken next
	live    int
	waiting int // of those live, without a reply so far
	most    uint8
}

// Bounds of the replies to one request. A server sends one, and a proxy in front of it or the network may double it.
const (
	mostOfServer = 4
	mostReplies  = 16
)

// entry is small, since each packet takes one out of cold memory.
type entry[K comparable, V any] struct {
	key    K
	origin V
	at     int64 // when it was relayed
	next   int32 // in the same bucket; 0 ends the chain
	first  bool  // no reply so far
	live   bool

	replies uint8    // that were passed on
	servers [4]uint8 // hashes of those that sent them
	counts  uint16   // the replies of each of servers, in four bits
}

// New makes a table for that many requests, of which each goes to that many servers.
func New[K comparable, V any](size int, expiry time.Duration, servers int) *Table[K, V] {
	buckets := 1
	for buckets < size {
		buckets *= 2
	}
	return &Table[K, V]{
		seed:    maphash.MakeSeed(),
		expiry:  expiry.Nanoseconds(),
		entries: make([]entry[K, V], size+1),
		buckets: make([]int32, buckets),
		oldest:  1,
		most:    uint8(min(max(mostReplies, 2*servers), 255)),
	}
}

func (p *Table[K, V]) bucket(k *K) *int32 {
	return &p.buckets[maphash.Comparable(p.seed, *k)&uint64(len(p.buckets)-1)]
}

// Remember notes a request. A repeated one replaces the earlier.
func (p *Table[K, V]) Remember(k K, o V, now int64) {
	p.RememberIf(k, o, now, func(V, V) bool { return true })
}

// RememberAnswered is Remember for a request that a reply has told of: none of its replies counts as its first.
func (p *Table[K, V]) RememberAnswered(k K, o V, now int64) {
	p.Remember(k, o, now)
	p.Match(k, now)
}

// RememberIf is Remember for requests that may be copies of another host's. Where the transaction is known already,
// and has not expired, replaces tells whether the request may replace the earlier one. If it may not, RememberIf
// returns the earlier one's origin, and ok is false.
func (p *Table[K, V]) RememberIf(k K, o V, now int64, replaces func(earlier, later V) bool) (earlier V, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	head := p.bucket(&k)
	if i := p.search(*head, &k); i != 0 {
		if e := &p.entries[i]; now-e.at <= p.expiry && !replaces(e.origin, o) {
			return e.origin, false
		}
		p.forget(i)
	}
	at := p.oldest
	p.oldest++
	if int(p.oldest) == len(p.entries) {
		p.oldest = 1
	}
	if p.entries[at].live {
		p.forget(at)
	}
	p.entries[at] = entry[K, V]{key: k, origin: o, at: now, first: true, live: true, next: *head}
	*head = at
	p.live++
	p.waiting++
	return earlier, true
}

// Peek finds the request that a message may answer, and changes nothing.
func (p *Table[K, V]) Peek(k K, now int64) (o V, found bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := p.find(&k)
	if i == 0 || now-p.entries[i].at > p.expiry {
		return o, false
	}
	return p.entries[i].origin, true
}

// Match finds the request that a reply answers, the time since it was relayed, and whether this is its first
// reply.
func (p *Table[K, V]) Match(k K, now int64) (o V, waited int64, first, found bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	e, first := p.match(&k, now)
	if e == nil {
		return o, 0, false, false
	}
	return e.origin, now - e.at, first, true
}

// MatchReply is Match for a reply that is to be passed on, if it is within the bounds of the replies to one request.
func (p *Table[K, V]) MatchReply(k K, server uint8, now int64) (o V, waited int64, first, found, within bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	e, first := p.match(&k, now)
	if e == nil {
		return o, 0, false, false, false
	}
	return e.origin, now - e.at, first, true, p.reply(e, server)
}

// match is Match; the caller holds mu.
func (p *Table[K, V]) match(k *K, now int64) (e *entry[K, V], first bool) {
	i := p.find(k)
	if i == 0 {
		return nil, false
	}
	if e = &p.entries[i]; now-e.at > p.expiry {
		p.forget(i)
		return nil, false
	}
	if first = e.first; first {
		e.first = false
		p.waiting--
	}
	return e, first
}

// reply notes a reply that is to be passed on, and reports whether it may be: of one request's a server may send 4, and
// all servers together 16, or twice their number. server is a hash of its address: two servers that have the
// same one share a bound, and more than four have the second bound only. The caller holds mu.
func (p *Table[K, V]) reply(e *entry[K, V], server uint8) (within bool) {
	if e.replies >= p.most {
		return false
	}
	for n := range e.servers {
		count := (e.counts >> (4 * n)) & 15
		if count > 0 && e.servers[n] != server {
			continue
		}
		if count >= mostOfServer {
			return false
		}
		e.servers[n] = server
		e.counts += 1 << (4 * n)
		break
	}
	e.replies++
	return true
}

// Sweep forgets expired requests and returns the number of those left.
func (p *Table[K, V]) Sweep(now int64) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	// From the oldest place on, entries are in the order of their times.
	for i, n := p.oldest, 1; n < len(p.entries) && p.live > 0; n++ {
		if e := &p.entries[i]; e.live {
			if now-e.at <= p.expiry {
				break
			}
			p.forget(i)
		}
		i++
		if int(i) == len(p.entries) {
			i = 1
		}
	}
	return p.live
}

// Len is how many requests are remembered, those that have expired since the last Sweep included.
func (p *Table[K, V]) Len() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.live
}

// Unanswered is how many requests have had no reply.
func (p *Table[K, V]) Unanswered() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.waiting
}

// Times of a drain: servers answer within milliseconds, or not at all.
const (
	drainMost  = time.Second
	drainCheck = 10 * time.Millisecond
)

// Drain waits until every request has had a reply, for a second at most.
func (p *Table[K, V]) Drain() {
	for end := time.Now().Add(drainMost); p.Unanswered() > 0 && time.Now().Before(end); {
		time.Sleep(drainCheck)
	}
}

// find returns the place of a live entry, 0 if there is none. The caller holds mu.
func (p *Table[K, V]) find(k *K) int32 { return p.search(*p.bucket(k), k) }

// search is find in a chain.
func (p *Table[K, V]) search(i int32, k *K) int32 {
	for ; i != 0; i = p.entries[i].next {
		if p.entries[i].key == *k {
			return i
		}
	}
	return 0
}

// forget unlinks an entry. The caller holds mu.
func (p *Table[K, V]) forget(at int32) {
	e := &p.entries[at]
	link := p.bucket(&e.key)
	for *link != at {
		link = &p.entries[*link].next
	}
	*link = e.next
	e.live = false
	p.live--
	if e.first {
		p.waiting--
	}
}
