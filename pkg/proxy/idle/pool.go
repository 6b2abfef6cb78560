// Package idle keeps connections to endpoints for later requests.
//
// An answer in HTTP/1.1 does not name its request: whatever bytes an endpoint sends on a connection are the answer to
// the request on it. An endpoint that answers one request twice would thus answer the next request, perhaps that of
// another client. Hence each connection has a [Key], which is set when the connection is opened and cannot change, and
// a pool gives the connection out for that key only. A key has the client's address ([PerClient]).
package idle

import (
	"hash/maphash"
	"net/netip"
	"time"

	"github.com/tinkerbell/stack/internal/list"
)

// Key says for which requests a connection may be used. A connection with the zero Key is not kept.
type Key struct {
	endpoint netip.AddrPort
	client   netip.Addr
}

// PerClient is the key for requests of one client to one endpoint. The client's address is the one that the route
// trusts, without a zone. With an invalid address (an unknown client) the connection is not kept.
func PerClient(endpoint netip.AddrPort, client netip.Addr) Key {
	return Key{endpoint: endpoint, client: client.Unmap().WithZone("")}
}

// Endpoint is the endpoint of connections with this key.
func (k Key) Endpoint() netip.AddrPort { return k.endpoint }

var seed = maphash.MakeSeed()

func (k Key) hash() uint64 { return maphash.Comparable(seed, k) }

func (k Key) keeps() bool { return k.client.IsValid() }

// Conn is a pointer to a connection that embeds a [Slot].
type Conn[C any] interface {
	comparable
	slot() *Slot[C]
}

// Slot is a connection's place in a pool. It is made by [NewSlot] and embedded in the connection.
type Slot[C any] struct {
	key   Key
	hash  uint64
	since time.Time // idle
	group int32     // in the pool; 0 is not in a pool
	// By the time since when they are idle:
	ofPool, ofKey list.Link[C]
}

// NewSlot is the slot of a connection that is opened for a key.
func NewSlot[C any](key Key) Slot[C] { return Slot[C]{key: key, hash: key.hash()} }

// Key is the key that the connection was opened with.
func (s *Slot[C]) Key() Key { return s.key }

func (s *Slot[C]) slot() *Slot[C] { return s } //nolint:unused // by Conn

// Limits of a [Pool].
type Limits struct {
	Total  int           // connections; if there is one more, the one that is idle for longest goes
	PerKey int           // connections of one key, likewise
	Age    time.Duration // how long a connection may be idle
}

// Pool has idle connections. It closes none of them: it returns the connections that it takes out, so that a caller can
// close them after it has let go of its lock. A Pool is not safe for concurrent use. It takes memory for at most
// Limits.Total connections, and allocates nothing once it has had that many: it has a hash table of its own, since Go's
// map may grow as keys come and go.
type Pool[C Conn[C]] struct {
	limits  Limits
	all     list.List[C] // the one that is idle for longest first
	buckets []int32      // the first group of each
	groups  []group[C]   // the first is none
	free    int32        // the first of the unused groups
}

// group has the connections of one key. There is at least one.
type group[C Conn[C]] struct {
	conns list.List[C]
	key   Key
	next  int32 // of the bucket, or of the unused
}

// New makes a pool.
func New[C Conn[C]](limits Limits) *Pool[C] {
	buckets := 1
	for buckets < limits.Total {
		buckets *= 2
	}
	return &Pool[C]{limits: limits, buckets: make([]int32, buckets), groups: make([]group[C], 1)}
}

// Len is the number of connections.
func (p *Pool[C]) Len() int { return p.all.Len() }

// bucket is the bucket of the groups with such a hash.
func (p *Pool[C]) bucket(hash uint64) *int32 { return &p.buckets[hash&uint64(len(p.buckets)-1)] }

// find finds the group of a key; 0 is none.
func (p *Pool[C]) find(key Key, hash uint64) int32 {
	at := *p.bucket(hash)
	for at != 0 && p.groups[at].key != key {
		at = p.groups[at].next
	}
	return at
}

// Take takes out the connection of a key that was used last, unless it is older than Limits.Age.
func (p *Pool[C]) Take(key Key, now time.Time) (c C, ok bool) {
	if p.all.Len() == 0 {
		return c, false
	}
	at := p.find(key, key.hash())
	if at == 0 {
		return c, false
	}
	last := p.groups[at].conns.Last()
	if now.Sub(last.slot().since) >= p.limits.Age {
		return c, false
	}
	return last, p.Remove(last)
}

// Age is for how long the connection has been idle that Take would return; 0 if there is none.
func (p *Pool[C]) Age(key Key, now time.Time) time.Duration {
	if at := p.find(key, key.hash()); at != 0 {
		return now.Sub(p.groups[at].conns.Last().slot().since)
	}
	return 0
}

// Spare reports whether a connection can be kept that is the only one of its key, and for which no other one has to go.
func (p *Pool[C]) Spare(key Key) bool {
	return p.all.Len() < p.limits.Total && p.find(key, key.hash()) == 0
}

// Put keeps a connection for requests with its key. If that is one connection too many, it returns the one that has
// been idle for longest, for the caller to close. It returns c itself if connections with its key are not kept.
func (p *Pool[C]) Put(c C, now time.Time) (surplus C, ok bool) {
	s := c.slot()
	if !s.key.keeps() || p.limits.Total <= 0 || p.limits.PerKey <= 0 {
		return c, true
	}
	at := p.find(s.key, s.hash)
	switch {
	case at != 0 && p.groups[at].conns.Len() >= p.limits.PerKey:
		surplus, ok = p.groups[at].conns.First(), true
	case p.all.Len() >= p.limits.Total:
		surplus, ok = p.all.First(), true
	}
	if ok {
		p.Remove(surplus)
		at = p.find(s.key, s.hash) // surplus may have been the only one of its group
	}
	if at == 0 {
		at = p.newGroup(s.key, s.hash)
	}
	s.since, s.group = now, at
	p.all.Add(&s.ofPool, c)
	p.groups[at].conns.Add(&s.ofKey, c)
	return surplus, ok
}

func (p *Pool[C]) newGroup(key Key, hash uint64) int32 {
	at := p.free
	if at == 0 {
		at = int32(len(p.groups))
		p.groups = append(p.groups, group[C]{})
	} else {
		p.free = p.groups[at].next
	}
	first := p.bucket(hash)
	p.groups[at] = group[C]{key: key, next: *first}
	*first = at
	return at
}

// Remove takes a connection out. It returns false if the connection is not in the pool.
func (p *Pool[C]) Remove(c C) bool {
	s := c.slot()
	at := s.group
	if at == 0 {
		return false
	}
	s.group = 0
	p.all.Remove(&s.ofPool)
	g := &p.groups[at]
	g.conns.Remove(&s.ofKey)
	if g.conns.Len() > 0 {
		return true
	}
	before := p.bucket(s.hash)
	for *before != at {
		before = &p.groups[*before].next
	}
	*before = g.next
	*g = group[C]{next: p.free}
	p.free = at
	return true
}

// Expired takes out one connection that has been idle for Limits.Age. There may be more.
func (p *Pool[C]) Expired(now time.Time) (c C, ok bool) {
	if p.all.Len() == 0 || now.Sub(p.all.First().slot().since) < p.limits.Age {
		return c, false
	}
	c = p.all.First()
	return c, p.Remove(c)
}

// RemoveAll takes out all connections to an endpoint, and returns them.
func (p *Pool[C]) RemoveAll(endpoint netip.AddrPort) (all []C) {
	var none C
	for c := p.all.First(); c != none; {
		s := c.slot()
		next := s.ofPool.Next()
		if s.key.endpoint == endpoint {
			p.Remove(c)
			all = append(all, c)
		}
		c = next
	}
	return all
}

// Close takes out all connections and returns them. The pool keeps none from now on.
func (p *Pool[C]) Close() (all []C) {
	for p.all.Len() > 0 {
		c := p.all.First()
		p.Remove(c)
		all = append(all, c)
	}
	p.limits.Total = 0
	return all
}
