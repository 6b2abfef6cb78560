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
}

// NewLimits bounds the number of sessions in total and of each client address.
func NewLimits(total, perClient int) *Limits {
	return &Limits{total: total, perClient: perClient, clients: make(map[netip.Addr]int)}
}

// Set changes the bounds. Sessions beyond them live on.
func (l *Limits) Set(total, perClient int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.total, l.perClient = total, perClient
}

// Acquire takes a place for the client, or says why there is none.
func (l *Limits) Acquire(client netip.Addr) Refusal {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.clients[client] >= l.perClient:
		return RefusedClientLimit
	case l.n >= l.total:
		return RefusedTableFull
	}
	l.n++
	l.clients[client]++
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
	RefusedClientLimit         // the limit of this client's sessions is reached
	RefusedNoEndpoint          // no backend is known
	RefusedLoop                // the client is one of our own sockets
	RefusedDraining            // the front is shutting down
	RefusedSocket              // the kernel gave no socket
)
