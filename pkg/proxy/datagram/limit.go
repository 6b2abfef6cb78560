package datagram

import (
	"net/netip"
	"sync"
)

// Limits bounds sessions over all workers of a front.
type Limits struct {
	mu               sync.Mutex
	total, perClient int
	n                int
	clients          map[netip.Addr]int
	networks         map[netip.Prefix]int // of IPv6
}

// NewLimits bounds the number of sessions in total, of each client address, and of each IPv6 network of 64 bits: a
// machine has as many addresses there as it likes, but a LAN of honest ones is one network too, so that it may have
// half of the total.
func NewLimits(total, perClient int) *Limits {
	return &Limits{
		total: total, perClient: perClient,
		clients: make(map[netip.Addr]int), networks: make(map[netip.Prefix]int),
	}
}

// network is the client's network of 64 bits, invalid for IPv4.
func network(client netip.Addr) netip.Prefix {
	if client.Is4() {
		return netip.Prefix{}
	}
	p, _ := client.Prefix(64) // never fails with 64 bits of 128
	return p
}

// Set changes the bounds. Sessions beyond them live on.
func (l *Limits) Set(total, perClient int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.total, l.perClient = total, perClient
}

// Acquire takes a place for the client, or says why there is none.
func (l *Limits) Acquire(client netip.Addr) Refusal {
	n := network(client)
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.clients[client] >= l.perClient, n.IsValid() && l.networks[n] >= max(l.total/2, 1):
		return RefusedClientLimit
	case l.n >= l.total:
		return RefusedTableFull
	}
	l.n++
	l.clients[client]++
	if n.IsValid() {
		l.networks[n]++
	}
	return RefusedNot
}

// Release gives a place back.
func (l *Limits) Release(client netip.Addr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.n--
	if l.clients[client]--; l.clients[client] <= 0 {
		delete(l.clients, client)
	}
	if n := network(client); n.IsValid() {
		if l.networks[n]--; l.networks[n] <= 0 {
			delete(l.networks, n)
		}
	}
}

// Len is the number of places taken.
func (l *Limits) Len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.n
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
