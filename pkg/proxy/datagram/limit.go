package datagram

import (
	"net/netip"
	"sync/atomic"
)

// Limits bounds the sessions of a front. They may change while it serves.
type Limits struct {
	total, perClient atomic.Int64
	workers          atomic.Int64
	taken            atomic.Int64
}

// NewLimits bounds the number of sessions in total, of each client address, and of each IPv6 network of 64 bits: a
// machine has as many addresses there as it likes, but a LAN of honest ones is one network too, so that it may have
// half of the total.
func NewLimits(total, perClient int) *Limits {
	l := new(Limits)
	l.Set(total, perClient)
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

// Set changes the bounds. Sessions beyond them live on until their places are needed.
func (l *Limits) Set(total, perClient int) {
	l.total.Store(int64(total))
	l.perClient.Store(int64(perClient))
}

// Len is the number of sessions.
func (l *Limits) Len() int { return int(l.taken.Load()) }

// leastShare is the part of a client's bound that each of several workers holds at least: the kernel spreads a
// client's ports over them by chance.
const leastShare = 8

// share is the part of the bounds that one worker holds: for all sessions, for those of a client address and for those
// of an IPv6 network. Workers share no sessions, so that each can make room for its own clients only.
func (l *Limits) share() (total, perClient, perNetwork int) {
	workers := int(l.workers.Load())
	total, perClient = int(l.total.Load()), int(l.perClient.Load())
	if workers > 1 {
		total = (total + workers - 1) / workers
		perClient = max((perClient+workers-1)/workers, min(perClient, leastShare))
	}
	return total, perClient, max(total/2, 1)
}

// Refusal says why no session was opened.
type Refusal uint8

// Refusals.
const (
	RefusedNot         Refusal = iota
	RefusedTableFull           // the limit of all sessions is reached
	RefusedClientLimit         // the limit of this client's sessions, or of its IPv6 network's, is reached
	RefusedNoEndpoint          // no backend is known
	RefusedLoop                // the client is one of our own sockets
	RefusedDraining            // the front is shutting down
	RefusedSocket              // the kernel gave no socket
)
