// Package idle keeps connections to endpoints for later requests.
//
// HTTP/1.1 has no names for answers: what an endpoint sends on a connection is taken for the answer to the request
// that is on it. An endpoint that answers twice would so answer the next request, of another client perhaps. Hence
// each connection has a [Key], which it gets when it is opened and cannot change, and a pool gives it out for that key
// only. A key is made with the client's address ([PerClient]), or, where a route asks for it, without ([Shared]).
package idle

import (
	"hash/maphash"
	"net/netip"
	"time"

	"github.com/tinkerbell/stack/internal/list"
)

// Key tells for which requests a connection may be used. The zero Key is for none: a connection with it is not kept.
type Key struct {
	endpoint netip.AddrPort
	client   netip.Addr // invalid if shared
	shared   bool
}

// PerClient is the key for requests of one client to one endpoint. The client's address is the one that the route
// believes, without a zone. Requests of an unknown client (an invalid address) have a key by which nothing is kept.
func PerClient(endpoint netip.AddrPort, client netip.Addr) Key {
	return Key{endpoint: endpoint, client: client.Unmap().WithZone("")}
}

// Shared is the key for requests of all clients to one endpoint.
func Shared(endpoint netip.AddrPort) Key { return Key{endpoint: endpoint, shared: true} }

// Endpoint is where a connection with this key leads.
func (k Key) Endpoint() netip.AddrPort { return k.endpoint }

var seed = maphash.MakeSeed()

func (k Key) hash() uint64 { return maphash.Comparable(seed, k) }

func (k Key) keeps() bool { return k.shared || k.client.IsValid() }

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
	group int32     // in the pool that has the connection; 0 is none
	// By the time since when they are idle:
	ofPool, ofKey list.Link[C]
}

// NewSlot is the slot of a connection that is opened for a key.
func NewSlot[C any](key Key) Slot[C] { return Slot[C]{key: key, hash: key.hash()} }

// Key is what the connection was opened for.
func (s *Slot[C]) Key() Key { return s.key }

// Idle tells whether a pool has the connection.
func (s *Slot[C]) Idle() bool { return s.group != 0 }

func (s *Slot[C]) slot() *Slot[C] { return s } //nolint:unused // by Conn

// Limits of a [Pool].
type Limits struct {
	Total  int           // connections; if there is one more, the one that is idle for longest goes
	PerKey int           // connections of one key, likewise
	Age    time.Duration // how long a connection may be idle
}

// Pool has idle connections. It closes none: what it gives up it returns, so that a caller with a lock can close it
// afterwards. It is not safe for concurrent use. It takes memory for Limits.Total connections at most, and allocates
// nothing once it has had that many: a hash table of its own, since Go's map may grow with keys that come and go.
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

// Len is how many connections there are.
func (p *Pool[C]) Len() int { return p.all.Len() }

// bucket is where a group with such a hash is found.
func (p *Pool[C]) bucket(hash uint64) *int32 { return &p.buckets[hash&uint64(len(p.buckets)-1)] }

// find finds the group of a key; 0 is none.
func (p *Pool[C]) find(key Key, hash uint64) int32 {
	at := *p.bucket(hash)
	for at != 0 && p.groups[at].key != key {
		at = p.groups[at].next
	}
	return at
}

// Take takes the connection of a key that was used last, if there is one that is not too old.
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

// Put keeps a connection for requests with its key. It returns the connection that has to be closed for that, if any:
// the one that is idle for longest, or the one put where nothing is kept for its key.
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
		at = p.find(s.key, s.hash) // it may have been the only one
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

// Remove takes a connection out; false if it is not in the pool.
func (p *Pool[C]) Remove(c C) bool {
	s := c.slot()
	at := s.group
	if at == 0 {
		return false
	}
	s.group = 0
	p.all.Remove(&s.ofPool)
	g := &p.groups[at]
	if g.conns.Remove(&s.ofKey); g.conns.Len() > 0 {
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

// Expired takes out a connection that is idle for too long. There may be more.
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

// Close takes out all connections, returns them, and has the pool keep none from now on.
func (p *Pool[C]) Close() (all []C) {
	for p.all.Len() > 0 {
		c := p.all.First()
		p.Remove(c)
		all = append(all, c)
	}
	p.limits.Total = 0
	return all
}
