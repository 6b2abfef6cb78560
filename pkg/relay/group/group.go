// Package group decides which of several replicas on one VLAN relays a machine's message, so that one of them does and
// the others take over when it cannot. It does no I/O and has no clock of its own: times are nanoseconds of the
// caller's. docs/design/relay-replicas.md says why it decides so.
package group

import (
	"slices"
	"sync"
	"time"
)

// The times of a group.
const (
	// HelloEvery is the time between two hellos of a replica.
	HelloEvery = 250 * time.Millisecond
	// Gone is the silence after which a replica is taken for gone. Firmware repeats a request after a second at the
	// least, so the first repetition of a machine whose replica is gone is relayed by another replica.
	Gone = time.Second
	// Patience is for how long a machine has to repeat itself until the next replica relays its requests too, although
	// the replica before it is there.
	Patience = 6 * time.Second
	// remembered is how long the last stamp of a replica that is gone is kept, so that its old hellos are ignored.
	remembered = 2 * MaxSkew
	// maxPeers bounds the replicas that are remembered, since any host on the VLAN can invent some.
	maxPeers = 16
)

// State is a replica's state as its hellos tell it.
type State struct {
	// ID is different for each process.
	ID uint64
	// Able tells that the replica's listener is open and that it knows a server's address.
	Able bool
	// Owner tells that the replica's node has the stack's address, as far as the replica can tell: no other station
	// answers for that address.
	Owner bool
	// Leaving tells that the replica ends.
	Leaving bool
}

// standing orders the replicas: a smaller one comes first.
func (s State) standing() uint8 {
	switch {
	case s.Able && s.Owner:
		return 0
	case s.Able:
		return 1
	default:
		return 2
	}
}

// Group is the replicas of one VLAN as one of them sees it. Its methods may be called from several goroutines.
type Group struct {
	start   time.Time // 0 of its clock
	mu      sync.Mutex
	self    State
	settled bool
	peers   []peer
	ranks   [buckets]uint8
	until   int64 // the time from which on a peer may be gone, and ranks has to be made anew
}

// peer is another replica.
type peer struct {
	State
	stamp int64 // of its last hello, on its own clock
	at    int64 // when that arrived
}

func (p *peer) here(now int64) bool { return !p.Leaving && now-p.at <= int64(Gone) }

// New makes the group of a replica that knows no other one yet. The replica relays nothing until it has settled. Times
// are since start.
func New(id uint64, start time.Time) *Group {
	g := &Group{start: start, self: State{ID: id}}
	g.order(0)
	return g
}

// Settled sets whether this replica has had time to receive the others' hellos.
func (g *Group) Settled(settled bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.settled = settled
}

// Update sets this replica's own state, and returns it.
func (g *Group) Update(able, owner, leaving bool, now int64) State {
	g.mu.Lock()
	defer g.mu.Unlock()
	next := State{ID: g.self.ID, Able: able && !leaving, Owner: owner && !leaving, Leaving: leaving}
	if next != g.self {
		g.self = next
		g.order(now)
	}
	return next
}

// Receive notes another replica's hello. It returns whether that replica was not here before. A hello whose stamp is
// not later than the replica's last one is an old one, and is ignored.
func (g *Group) Receive(h Hello, now int64) (arrived bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if h.ID == g.self.ID {
		return false
	}
	g.peers = slices.DeleteFunc(g.peers, func(p peer) bool { return now-p.at > int64(remembered) })
	i := slices.IndexFunc(g.peers, func(p peer) bool { return p.ID == h.ID })
	known := i >= 0
	switch {
	case known && h.Stamp <= g.peers[i].stamp:
		return false
	case !known && len(g.peers) == maxPeers:
		// Only a replica that is gone makes room for a new one: a host that invents replicas cannot push out the true ones.
		i = slices.IndexFunc(g.peers, func(p peer) bool { return !p.here(now) })
		if i < 0 {
			return false
		}
	case !known:
		g.peers = append(g.peers, peer{})
		i = len(g.peers) - 1
	}
	p := &g.peers[i]
	before, wasHere := p.State, known && p.here(now)
	*p = peer{State: h.State, stamp: h.Stamp, at: now}
	if before != p.State || !wasHere {
		g.order(now)
	}
	return !wasHere && p.here(now)
}

// View is a group at one time.
type View struct {
	// Peers is how many other replicas are here.
	Peers int
	// Owners is how many replicas, this one included, say that their node has the stack's address.
	Owners int
	// Share is how many of 256 buckets of machines this replica relays.
	Share int
}

// View returns the group's state at a time.
func (g *Group) View(now int64) (v View) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.refresh(now)
	if g.self.standing() == 0 {
		v.Owners = 1
	}
	for i := range g.peers {
		if p := &g.peers[i]; p.here(now) {
			v.Peers++
			if p.standing() == 0 {
				v.Owners++
			}
		}
	}
	for _, rank := range g.ranks {
		if rank == 0 && g.settled {
			v.Share++
		}
	}
	return v
}

// unsettled is the rank of a replica that has not had time to receive the others' hellos: it relays nothing.
const unsettled = 0xff

// rank is how many replicas come before this one for the machines of a bucket.
func (g *Group) rank(bucket uint8, now int64) uint8 {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.settled {
		return unsettled
	}
	g.refresh(now)
	return g.ranks[bucket]
}

// refresh orders the replicas anew if one of them may be gone.
func (g *Group) refresh(now int64) {
	if now > g.until {
		g.order(now)
	}
}

// order finds this replica's rank for each bucket: able owners come first, then other able replicas, then the rest, and
// within these by the bucket.
func (g *Group) order(now int64) {
	g.until = now + int64(remembered)
	g.ranks = [buckets]uint8{}
	for i := range g.peers {
		p := &g.peers[i]
		if !p.here(now) {
			continue
		}
		g.until = min(g.until, p.at+int64(Gone))
		for bucket := range g.ranks {
			if before(p.State, g.self, uint8(bucket)) {
				g.ranks[bucket]++
			}
		}
	}
}

// before tells whether a comes before b for the machines of a bucket.
func before(a, b State, bucket uint8) bool {
	if x, y := a.standing(), b.standing(); x != y {
		return x < y
	}
	return weight(a.ID, bucket) > weight(b.ID, bucket)
}
