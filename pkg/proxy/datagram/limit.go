package datagram

import (
	"net/netip"
	"sync/atomic"
)

// Limits are the bounds of a front's sessions, on their times and their number: in total, of each client address, and
// of each IPv6 network of 64 bits. A machine has as many addresses there as it likes, but a LAN of honest ones is one
// network too, so that it may have half of the total.
type Limits struct {
	bounds atomic.Pointer[Bounds]
	taken  atomic.Int64
}

// NewLimits makes limits.
func NewLimits(b Bounds) *Limits {
	l := new(Limits)
	l.Set(b)
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

// numbers are the bounds on the number of sessions: of all, of those of a client address and of an IPv6 network.
func (l *Limits) numbers() (total, perClient, perNetwork int) {
	b := l.bounds.Load()
	return b.MaxSessions, b.MaxSessionsPerClient, max(b.MaxSessions/2, 1)
}
