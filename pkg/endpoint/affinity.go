package endpoint

import (
	"container/list"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// maxAffinity is the number of clients that a pool remembers. The client that was away for longest is forgotten first,
// and is balanced like a new one when it comes again.
const maxAffinity = 1 << 16

// affinity remembers the endpoint that served a client, for the client's next connection (sessionAffinity: ClientIP of
// a Kubernetes Service). Clients behind one address share an endpoint.
type affinity struct {
	mu      sync.Mutex
	keep    time.Duration // since the client's last connection
	clients map[netip.Addr]*list.Element
	visits  *list.List // of visit, the latest first
}

// visit is a client's last connection.
type visit struct {
	client   netip.Addr
	endpoint netip.AddrPort
	at       time.Time
}

// newAffinity takes over the clients of the pool before. It is nil if every connection is balanced.
func newAffinity(keep time.Duration, before *Pool) *affinity {
	if keep <= 0 {
		return nil
	}
	if before != nil && before.affinity != nil {
		a := before.affinity
		a.mu.Lock()
		a.keep = keep
		a.mu.Unlock()
		return a
	}
	return &affinity{keep: keep, clients: map[netip.Addr]*list.Element{}, visits: list.New()}
}

// endpoint is the one that served a client last, if it is offered and was not tried; else nil.
func (a *affinity) endpoint(client netip.Addr, offered, tried []*Endpoint) *Endpoint {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.expire(time.Now())
	known := a.clients[client.Unmap()]
	if known == nil {
		return nil
	}
	last := known.Value.(visit).endpoint
	for _, e := range offered {
		if e.Addr == last && !slices.Contains(tried, e) {
			return e
		}
	}
	return nil
}

// remember notes the endpoint of a client's connection.
func (a *affinity) remember(client netip.Addr, endpoint netip.AddrPort) {
	a.mu.Lock()
	defer a.mu.Unlock()
	v := visit{client: client.Unmap(), endpoint: endpoint, at: time.Now()}
	if known := a.clients[v.client]; known != nil {
		known.Value = v
		a.visits.MoveToFront(known)
		return
	}
	if a.visits.Len() >= maxAffinity {
		a.forget(a.visits.Back())
	}
	a.clients[v.client] = a.visits.PushFront(v)
}

// expire forgets clients that were away for too long. The caller holds mu.
func (a *affinity) expire(now time.Time) {
	for oldest := a.visits.Back(); oldest != nil && now.Sub(oldest.Value.(visit).at) >= a.keep; oldest = a.visits.Back() {
		a.forget(oldest)
	}
}

// forget removes a visit. The caller holds mu.
func (a *affinity) forget(e *list.Element) {
	delete(a.clients, e.Value.(visit).client)
	a.visits.Remove(e)
}
