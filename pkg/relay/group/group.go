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
	// HelloEvery is how often a replica says that it is there.
	HelloEvery = 250 * time.Millisecond
	// Gone is the silence after which a replica counts no more. Firmware repeats a request after a second at the least:
	// a machine whose replica went away is relayed by another one at its first repetition.
	Gone = time.Second
	// Patience is how long a machine has to ask in vain, by its own repetitions, until the next replica relays its
	// requests, too, although the one before it is there.
	Patience = 6 * time.Second
	// remembered is how long the last stamp of a replica that is gone is kept, so that its old hellos count for nothing.
	remembered = 2 * MaxSkew
	// maxPeers bounds what strangers can have this replica remember.
	maxPeers = 16
)

// State is what a replica says of itself.
type State struct {
	// ID is another one for each process.
	ID uint64
	// Able tells that the replica hears machines and knows a server to ask.
	Able bool
	// Owner tells that the replica's node has the stack's address, as far as the replica can tell: it hears nobody else
	// answer for it.
	Owner bool
	// Leaving tells that the replica ends.
	Leaving bool
}

// standing is what comes first among replicas: the smaller one.
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
	until   int64 // when ranks has to be made anew, since a peer may be gone
}

// peer is another replica.
type peer struct {
	State
	stamp int64 // of its last hello, on its own clock
	heard int64 // when that came
}

func (p *peer) here(now int64) bool { return !p.Leaving && now-p.heard <= int64(Gone) }

// New makes the group of a replica that knows no other one. It relays nothing until it has settled. Times are since
// start.
func New(id uint64, start time.Time) *Group {
	g := &Group{start: start, self: State{ID: id}}
	g.order(0)
	return g
}

// Settled tells whether this replica has had time to hear the others.
func (g *Group) Settled(settled bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.settled = settled
}

// Be is what this replica says of itself from now on.
func (g *Group) Be(able, owner, leaving bool, now int64) State {
	g.mu.Lock()
	defer g.mu.Unlock()
	next := State{ID: g.self.ID, Able: able && !leaving, Owner: owner && !leaving, Leaving: leaving}
	if next != g.self {
		g.self = next
		g.order(now)
	}
	return next
}

// Hear takes what another replica says of itself. It returns whether that replica was not here before. A stamp that is
// not later than the replica's last one is an old hello, and counts for nothing.
func (g *Group) Hear(h Hello, now int64) (arrived bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if h.ID == g.self.ID {
		return false
	}
	g.peers = slices.DeleteFunc(g.peers, func(p peer) bool { return now-p.heard > int64(remembered) })
	i := slices.IndexFunc(g.peers, func(p peer) bool { return p.ID == h.ID })
	known := i >= 0
	switch {
	case known && h.Stamp <= g.peers[i].stamp:
		return false
	case !known && len(g.peers) == maxPeers:
		// One that is gone makes room, never one that is here: else a stranger could push it out.
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
	*p = peer{State: h.State, stamp: h.Stamp, heard: now}
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

// View looks at the group.
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

// unsettled is the rank of a replica that has not had time to hear the others: it relays nothing.
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
		g.until = min(g.until, p.heard+int64(Gone))
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
