// Package admission bounds what clients may take of the process: memory and descriptors, in total, by client, and by
// route.
//
// Fronts charge what a connection or request costs to an [Account] before they serve it. While there is room every
// charge is admitted. When there is none, the client with the largest charge gives up what has been without
// progress for longest, so that a client with little always gets in; and a part of the room is each route's own, so
// that the clients of one route do not shut out those of another.
//
// The charges are what the parts of the program cost when measured. What they do not cover, above all the kernel's
// socket buffers, is measured as a whole: while the container's memory is nearly full the account gives up connections
// and shrinks the room (see [Account.Run]).
//
// Not its job: closing connections, or the limits that a route sets itself.
package admission

import (
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tinkerbell/stack/pkg/edge/limit"
)

// Limits are what all connections and requests together may take.
type Limits struct {
	// Memory is in bytes.
	Memory int64
	// Descriptors are open files.
	Descriptors int
}

// Cost is what one connection or request takes.
type Cost struct {
	Memory      int64 // bytes
	Descriptors int
}

// Holder has what was charged to a [Lease].
type Holder interface {
	// Evict has it closed soon. It is called once at most, from any goroutine, and must not wait.
	Evict()
}

// Refusal is why something is not admitted: the label of a metric.
type Refusal uint8

// Refusals.
const (
	Admitted Refusal = iota
	// Memory: all of it is in use by clients with no more than this one.
	Memory
	// Descriptors: the same.
	Descriptors
	// ClientShare: the client has its half of the whole.
	ClientShare
	refusals
)

func (r Refusal) String() string {
	return [...]string{"admitted", "memory", "descriptors", "client_share"}[r]
}

const (
	// clientShare is the part of the whole that a client may have on a route, as a divisor.
	clientShare = 2
	// spareShare is the part of the room up to which leases may have what they can do without, as a divisor.
	spareShare = 4
	// routeShare is the part of the whole that is shared out among the routes as their own, as a divisor.
	routeShare = 2
	// stale is how long a client's connection has to be without progress to be given up for another one of the same
	// client.
	stale = 2 * time.Second
	// much is how many times as much as a newcomer a client has to have to make room for it: clients with about the same
	// would push each other out on and on.
	much = 2
	// looks is how many clients are searched for a stale connection, where none has more than the others.
	looks = 16
	// most is how many leases are given up for one.
	most = 8
)

// Account is what the connections of a process share. A nil Account admits everything.
type Account struct {
	memory int64 // the limit
	price  int64 // bytes that a descriptor counts as, so that one sum bounds both
	now    atomic.Int64
	short  atomic.Bool // the container's memory is
	wake   chan struct{}
	log    *slog.Logger

	mu     sync.Mutex
	room   int64         // what may be used now: memory, or less under pressure
	plenty bool          // it is less only until the next look
	looked chan struct{} // closed by the next look, where connections wait for it
	used   int64
	// leaving is what evicted holders had that have not ended yet.
	leaving int64
	// spared is what leases have of used that they can do without; wanting is how many share that; sparing are the leases
	// that have some of it.
	spared, wanting int64
	sparing         []*Lease
	routes          []*Route
	free            []*client // for their space
	gone            []Holder  // the same, of shed
	swept           time.Time // when old bars were forgotten
}

// New makes an account. The logger may be nil.
func New(l Limits, log *slog.Logger) *Account {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	a := &Account{memory: max(l.Memory, 1), log: log, wake: make(chan struct{}, 1)}
	a.room = a.memory
	a.price = a.memory / int64(max(l.Descriptors, 1))
	a.now.Store(time.Now().UnixNano())
	return a
}

// Route is the part of the account that has a route's connections.
type Route struct {
	account *Account
	name    string

	// Guarded by the account's mutex.
	used    int64
	clients map[netip.Addr]*client
	largest clientHeap
	evicted uint64
	refused [refusals]uint64
	logged  loggedCounts
	bars    bars
}

// Route returns the part of a route, always the same for a name. Each takes its share of the whole. Of a nil account it
// is nil.
func (a *Account) Route(name string) *Route {
	if a == nil {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, r := range a.routes {
		if r.name == name {
			return r
		}
	}
	r := &Route{account: a, name: name, clients: map[netip.Addr]*client{}}
	a.routes = append(a.routes, r)
	return r
}

// Forget drops the part of a route whose leases have all been released, with its counts. It leaves a part that has
// leases as it is.
func (a *Account) Forget(name string) {
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.routes = slices.DeleteFunc(a.routes, func(r *Route) bool { return r.name == name && len(r.clients) == 0 })
}

// Admit charges a connection or request to a client, unless there is no room for it. Then the lease is as before.
func (r *Route) Admit(l *Lease, h Holder, from netip.Addr, cost Cost) Refusal {
	if r == nil {
		return Admitted
	}
	a := r.account
	var gone victims
	a.mu.Lock()
	l.route, l.holder = r, h
	why := a.admit(l, limit.Key(from), a.charge(cost), a.room, cost.Descriptors > 0, &gone)
	if why == Memory && int64(cost.Descriptors)*a.price > cost.Memory {
		why = Descriptors
	}
	r.refused[why]++
	wake := a.used > a.memory/busyPart
	a.mu.Unlock()
	gone.evict()
	if wake {
		a.hurry()
	}
	return why
}

// admit charges a lease to a client, below a bound in all. The caller holds mu.
func (a *Account) admit(l *Lease, from netip.Addr, charge, bound int64, connection bool, gone *victims) Refusal {
	c := a.clientOf(l.route, from)
	if connection && l.route.bars.hold(from, a.now.Load()) {
		a.forget(c)
		return Memory
	}
	if c.leases.Len() == 0 { // no client is shut out for what others have
		bound = a.memory
	}
	why := a.makeRoom(c, charge, bound, gone)
	if why != Admitted {
		if !connection {
			a.bar(c)
		}
		a.forget(c)
		return why
	}
	l.charge = charge
	l.progress.Store(a.now.Load())
	c.add(l)
	a.add(c, charge)
	return Admitted
}

// bar keeps a client, of which a request was refused, from opening connections for a while; not where there is going
// to be room behind the next look. The caller holds mu.
func (a *Account) bar(c *client) {
	if !a.plenty {
		c.route.bars.add(c.addr, a.now.Load())
	}
}

// charge is what a cost counts as.
func (a *Account) charge(c Cost) int64 { return max(c.Memory, int64(c.Descriptors)*a.price) }

// add changes what a client has in use. The caller holds mu.
func (a *Account) add(c *client, charge int64) {
	a.used += charge
	c.route.used += charge
	c.used += charge
	c.route.largest.fix(c)
}

// makeRoom finds room for one more charge of a client, below a bound in all. The caller holds mu.
func (a *Account) makeRoom(c *client, need, bound int64, gone *victims) Refusal {
	bound = max(bound, a.used) // the charge takes the place of others, at least
	for {
		var l *Lease
		greedy := c.used+need > a.memory/clientShare
		switch {
		case !greedy && a.used+need <= bound:
			return Admitted
		case a.reclaim():
			continue
		case greedy:
			if l = c.oldest(a.now.Load()); l == nil || !l.stale() {
				return ClientShare
			}
		default:
			if l = a.victim(c, need); l == nil {
				return Memory
			}
		}
		if gone.n == most {
			return Memory
		}
		gone.add(l.holder)
		a.evict(l, c)
	}
}

// reclaim takes back what leases can do without, so that no lease goes for it: a download with large buffers would be
// the first, as the one with the most. The holder hears of it when it asks for its spare again, as it gets on. What is
// stale keeps its charge: nobody empties its buffers. It tells whether there was anything. The caller holds mu.
func (a *Account) reclaim() bool {
	before := a.spared
	for i := len(a.sparing) - 1; i >= 0; i-- {
		if l := a.sparing[i]; !l.stale() {
			l.reclaims++
			a.spare(l, -l.spare)
		}
	}
	return a.spared < before
}

// spare charges a lease more, or less, of what it can do without. The caller holds mu.
func (a *Account) spare(l *Lease, more int64) {
	l.spare += more
	l.charge += more
	a.spared += more
	a.add(l.client, more)
	a.list(l)
}

// list has a lease among those that have something to spare, if it has. The caller holds mu.
func (a *Account) list(l *Lease) {
	switch {
	case l.spare > 0 && l.place == 0:
		a.sparing = append(a.sparing, l)
		l.place = len(a.sparing)
	case l.spare == 0 && l.place > 0:
		last := len(a.sparing) - 1
		moved := a.sparing[last]
		a.sparing[l.place-1], moved.place = moved, l.place
		a.sparing[last] = nil
		a.sparing, l.place = a.sparing[:last], 0
	}
}

// victim is what has to go for a charge of a client, nil where that is itself the one with the most. The caller holds
// mu.
func (a *Account) victim(c *client, need int64) *Lease {
	share := a.share()
	top := a.top(func(r *Route) bool { return r == c.route || r.used > share })
	if top == nil {
		return nil
	}
	now := a.now.Load()
	if top != c && (top.used >= much*(c.used+need) || top.route != c.route && c.route.used+need <= share) {
		return top.oldest(now)
	}
	if l := c.oldest(now); l != nil && l.stale() {
		return l
	}
	// All have little: one that does not get on goes.
	for _, each := range top.route.largest[:min(len(top.route.largest), looks)] {
		if l := each.oldest(now); l != nil && l.stale() {
			return l
		}
	}
	return nil
}

// share is what each route has for itself. The caller holds mu.
func (a *Account) share() int64 { return a.room / int64(routeShare*max(len(a.routes), 1)) }

// top is the client with the most, of some routes. The caller holds mu.
func (a *Account) top(of func(*Route) bool) (top *client) {
	for _, r := range a.routes {
		if len(r.largest) > 0 && (top == nil || r.largest[0].used > top.used) && of(r) {
			top = r.largest[0]
		}
	}
	return top
}

// evict takes a lease off the account for another one, of a client that is not forgotten. The caller holds mu and
// evicts the holder behind it.
func (a *Account) evict(l *Lease, by *client) {
	c := l.client
	c.route.evicted++
	l.leaving = l.charge
	a.leaving += l.charge
	a.release(l)
	if c != by {
		a.forget(c)
	}
}

// release takes a lease off the account. The caller holds mu, and forgets the client.
func (a *Account) release(l *Lease) {
	c := l.client
	c.remove(l)
	a.add(c, -l.charge)
	a.spared -= l.spare
	a.wanting -= l.wanting
	l.charge, l.spare, l.wanting = 0, 0, 0
	a.list(l)
}

// shed gives up what is without progress for longest of those with the most, until so much is free.
func (a *Account) shed(bytes int64) {
	a.mu.Lock()
	gone := a.gone[:0]
	for bytes > 0 && a.used > 0 {
		share := a.share()
		top := a.top(func(r *Route) bool { return r.used > share })
		if top == nil {
			top = a.top(func(*Route) bool { return true })
		}
		l := top.oldest(a.now.Load())
		bytes -= l.charge
		gone = append(gone, l.holder)
		a.evict(l, nil)
	}
	a.gone = gone
	a.mu.Unlock()
	for i, h := range gone {
		h.Evict()
		gone[i] = nil
	}
}

// victims are to be evicted when the account's mutex is free again.
type victims struct {
	n   int
	all [most]Holder
}

func (v *victims) add(h Holder) {
	v.all[v.n] = h
	v.n++
}

func (v *victims) evict() {
	for _, h := range v.all[:v.n] {
		h.Evict()
	}
}
