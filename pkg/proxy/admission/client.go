package admission

import (
	"net/netip"

	"github.com/tinkerbell/stack/internal/list"
)

// clientKey is a client's address on a route: a machine that holds a stream to one service gets in at the others as if
// it had nothing.
type clientKey struct {
	addr  netip.Addr
	route *Charges
}

// client has the charges of one client on a route. All of its fields are guarded by the account's mutex.
type client struct {
	clientKey
	used  int64
	index int // in the account's heap
	// barred is until when it gets no new connections, by the account's clock.
	barred int64

	charges list.List[*Charge] // by since; the first is evicted first
}

// keptClients is the number of unused clients that are kept, to save allocations.
const keptClients = 256

// clientOf finds a client by its address, or makes one.
func (a *Account) clientOf(key clientKey) *client {
	c := a.clients[key]
	if c != nil {
		return c
	}
	if n := len(a.free); n > 0 {
		c, a.free = a.free[n-1], a.free[:n-1]
	} else {
		c = &client{}
	}
	*c = client{clientKey: key, index: len(a.largest)}
	a.clients[key] = c
	a.largest = append(a.largest, c)
	return c
}

// forget drops a client without charges.
func (a *Account) forget(c *client) {
	if c.charges.Len() > 0 {
		return
	}
	a.largest.remove(c)
	delete(a.clients, c.clientKey)
	if len(a.free) < keptClients {
		a.free = append(a.free, c)
	}
}

// add puts a charge behind the others.
func (c *client) add(l *Charge) {
	l.client, l.since = c, l.progress.Load()
	c.charges.Add(&l.link, l)
}

func (c *client) remove(l *Charge) {
	c.charges.Remove(&l.link)
	l.client = nil
}

// oldest is the charge that has been without progress for longest. First it moves the charges with progress since they
// were put into the list to its end: to keep the list in order all the time would take the mutex at each progress.
func (c *client) oldest(now int64) *Charge {
	for l := c.charges.First(); l != nil; l = c.charges.First() {
		if l.progress.Load() <= l.since || l.since >= now {
			return l
		}
		c.remove(l)
		c.add(l)
	}
	return nil
}

// clientHeap is a heap of the clients, the one with the largest charge first.
type clientHeap []*client

// fix moves a client to its place after its charge has changed.
func (h clientHeap) fix(c *client) {
	i := c.index
	for i > 0 {
		above := (i - 1) / 2
		if h[above].used >= h[i].used {
			break
		}
		h.swap(i, above)
		i = above
	}
	for {
		below := 2*i + 1
		if below >= len(h) {
			return
		}
		if below+1 < len(h) && h[below+1].used > h[below].used {
			below++
		}
		if h[i].used >= h[below].used {
			return
		}
		h.swap(i, below)
		i = below
	}
}

func (h clientHeap) swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

func (h *clientHeap) remove(c *client) {
	last := len(*h) - 1
	i := c.index
	h.swap(i, last)
	(*h)[last] = nil
	*h = (*h)[:last]
	if i < last {
		h.fix((*h)[i])
	}
}
