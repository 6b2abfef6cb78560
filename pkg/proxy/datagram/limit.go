package datagram

import (
	"net/netip"
	"sync/atomic"
)

// Limits are the bounds of a front's sessions, on their times and their number: in total, of each client address, and
// of each IPv6 network of 64 bits. A machine has as many addresses there as it likes, but a LAN of honest ones is one
// network too, so that it may have half of the total.
type Limits struct {
	bounds         atomic.Pointer[Bounds]
	workers, taken atomic.Int64
}

// NewLimits makes limits.
func NewLimits(b Bounds) *Limits {
	l := new(Limits)
	l.Set(b)
	l.workers.Store(1)
	return l
}

// network is the client's network of 64 bits, invalid for IPv4.
func network(client netip.Addr) netip.Prefix {
	if client.Is4() {
		return netip.Prefix{}
	}
	p, _ := client.Prefix(64) // never fails with 64 bits of 128
	return p
}

// Set changes the bounds while the front serves. Sessions beyond their number live on until their places are needed.
func (l *Limits) Set(b Bounds) {
	b.setDefaults()
	l.bounds.Store(&b)
}

// Len is the number of sessions.
func (l *Limits) Len() int { return int(l.taken.Load()) }

// leastShare is the part of a client's bound that each of several workers holds at least: the kernel spreads a
// client's ports over them by chance.
const leastShare = 8

// share is the part of the bounds that one worker holds: for all sessions, for those of a client address and for those
// of an IPv6 network. Workers share no sessions, so that each can make room for its own clients only.
func (l *Limits) share() (total, perClient, perNetwork int) {
	workers, b := int(l.workers.Load()), l.bounds.Load()
	total, perClient = b.MaxSessions, b.MaxSessionsPerClient
	if workers > 1 {
		total = (total + workers - 1) / workers
		perClient = max((perClient+workers-1)/workers, min(perClient, leastShare))
	}
	return total, perClient, max(total/2, 1)
}
