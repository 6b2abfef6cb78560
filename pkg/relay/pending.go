package relay

import (
	"hash/maphash"
	"net/netip"
	"sync"
	"time"

	"github.com/tinkerbell/stack/pkg/dhcp"
)

// peer is an IPv4 address and port, without the pointer that a netip.Addr holds: the pending table is large, and
// the garbage collector need not look into it.
type peer struct {
	ip   [4]byte
	port uint16
}

func peerOf(a netip.AddrPort) peer { return peer{ip: a.Addr().As4(), port: a.Port()} }

func (e peer) String() string { return netip.AddrPortFrom(netip.AddrFrom4(e.ip), e.port).String() }

// key identifies a transaction: what a client chooses and a server must repeat.
type key struct {
	xid    uint32
	chaddr [16]byte
	hlen   uint8
}

func keyOf(m dhcp.Message) key {
	k := key{xid: m.XID(), chaddr: m.Chaddr(), hlen: m.HLen()}
	// A server that parses and rebuilds, as Smee does, zeroes what is behind the address.
	clear(k.chaddr[min(k.hlen, 16):])
	return k
}

// origin is where a request came from, and so where its replies go.
type origin struct {
	// listener is the index of the listener that heard it, or unicast.
	listener int16
	// added tells that an option 82 is ours and must not reach the client; agent is the length of its value, and
	// sole that there was none before.
	added, sole bool
	agent       uint8
	// sum is the CRC-32 of that value, unless it is the sole one: a server may have echoed the other only.
	sum uint32
	// giaddr is the relay agent that the request named, whose place this relay has taken; zero if none.
	giaddr [4]byte
	// from and local are both ends of a unicast request: the reply takes the same path.
	from  peer
	local [4]byte
	// client is what the client is known by, zero if that is not known here.
	client uint64
}

// unicast is the origin of what arrived at an address of this host instead of at a listener.
const unicast = -1

type entry struct {
	key    key
	origin origin
	at     int64 // when it was relayed, in nanoseconds of the relay's clock
	first  bool  // no reply so far
	live   bool
	next   int32 // in the same bucket; 0 ends the chain
}

// pending remembers the requests that wait for replies. Memory is bounded: a new request takes the place of the
// oldest when all places are taken, and none lives longer than the expiry. A request stays after its first
// reply, since there may be a reply of every server.
type pending struct {
	mu      sync.Mutex
	seed    maphash.Seed // secret, so that no sender can aim at one bucket
	expiry  int64
	entries []entry // entries[0] is unused: index 0 ends chains
	buckets []int32
	oldest  int32 // the place that is taken next
	live    int
	waiting int // of those live, without a reply so far
}

func newPending(size int, expiry time.Duration) *pending {
	buckets := 1
	for buckets < size {
		buckets *= 2
	}
	return &pending{
		seed:    maphash.MakeSeed(),
		expiry:  expiry.Nanoseconds(),
		entries: make([]entry, size+1),
		buckets: make([]int32, buckets),
		oldest:  1,
	}
}

func (p *pending) bucket(k key) *int32 {
	return &p.buckets[maphash.Comparable(p.seed, k)&uint64(len(p.buckets)-1)]
}

// remember notes a request. A repeated one replaces the earlier.
func (p *pending) remember(k key, o origin, now int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if i := p.find(k); i != 0 {
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
	head := p.bucket(k)
	p.entries[at] = entry{key: k, origin: o, at: now, first: true, live: true, next: *head}
	*head = at
	p.live++
	p.waiting++
}

// match finds the request that a reply answers, the time since it was relayed, and whether this is its first
// reply.
func (p *pending) match(k key, now int64) (o origin, waited int64, first, found bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := p.find(k)
	if i == 0 {
		return origin{}, 0, false, false
	}
	e := &p.entries[i]
	waited = now - e.at
	if waited > p.expiry {
		p.forget(i)
		return origin{}, 0, false, false
	}
	if first = e.first; first {
		e.first = false
		p.waiting--
	}
	return e.origin, waited, first, true
}

// sweep forgets what has expired and returns how many requests are left.
func (p *pending) sweep(now int64) int {
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

// unanswered is how many requests have had no reply.
func (p *pending) unanswered() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.waiting
}

// find returns the place of a live entry, 0 if there is none. The caller holds mu.
func (p *pending) find(k key) int32 {
	for i := *p.bucket(k); i != 0; i = p.entries[i].next {
		if p.entries[i].key == k {
			return i
		}
	}
	return 0
}

// forget unlinks an entry. The caller holds mu.
func (p *pending) forget(at int32) {
	e := &p.entries[at]
	link := p.bucket(e.key)
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
