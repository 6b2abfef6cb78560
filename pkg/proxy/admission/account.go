// Package admission bounds the memory and the descriptors that clients may use, in total and by client.
//
// A front charges the cost of each connection or request to an [Account] before it serves it. While there is room the
// account admits every charge. When there is no room, the account evicts a connection of the client with the largest
// charge, the one without progress for longest; so a client with a small charge always gets in.
//
// The charges were measured. They do not cover everything, above all not the kernel's socket buffers. Therefore the
// account also measures the container: while its memory is nearly full, the account evicts connections and shrinks the
// room (see [Account.Run]).
//
// Not its job: closing connections, or the limits that a route sets itself.
package admission

import (
	"cmp"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tinkerbell/stack/pkg/edge/limit"
)

// Limits bound all connections and requests together.
type Limits struct {
	// Memory is in bytes.
	Memory int64
	// Descriptors are open files.
	Descriptors int
}

// Cost is that of one connection or request.
type Cost struct {
	Memory      int64 // bytes
	Descriptors int
}

// Holder is the connection or request whose cost a [Charge] has charged.
type Holder interface {
	// Evict has the connection or request closed soon. It is called at most once, by any goroutine, and must not wait.
	Evict()
}

// Refusal is the reason for which a charge is not admitted, and the label of a metric.
type Refusal uint8

// Refusals.
const (
	Admitted Refusal = iota
	// Memory: all of it is in use, and no client has more than this one.
	Memory
	// Descriptors: all of them are in use, likewise.
	Descriptors
	// ClientShare: the client would have more than half of the memory.
	ClientShare
	refusals
)

func (r Refusal) String() string {
	return [...]string{"admitted", "memory", "descriptors", "client_share"}[r]
}

const (
	// clientShare is the part of the memory that a client may have on a route, as a divisor.
	clientShare = 2
	// lentShare is the part of the memory that large buffers may have in all, as a divisor. Without the bound, 6 machines
	// boot beside a flood of HTTP/2 streams, not 64.
	lentShare = 4
	// stale is the time without progress after which a connection is evicted for another one of the same client.
	stale = 2 * time.Second
	// much is how many times a newcomer's charge a client must have before one of its connections is evicted for the
	// newcomer: clients with equal charges would else evict each other without end.
	much = 2
	// looks is the number of clients that are searched for a stale connection when all have about the same charge.
	looks = 16
	// most is the number of charges that are evicted for one newcomer.
	most = 8
	// barTime is how long a client gets no new connections after one of its requests was refused: to accept a connection
	// and refuse fifty requests on it costs a hundred times as much as to refuse the connection. Without it, 4 machines
	// boot beside a flood of HTTP/2 streams, not 64.
	barTime = 8 * time.Second
)

// Account has the charges of all connections and requests of a process. A nil Account admits everything.
type Account struct {
	memory int64 // the limit
	price  int64 // bytes that a descriptor is charged as, so that one sum bounds both
	began  time.Time
	now    atomic.Int64 // since began, in nanoseconds: the wall clock may be set
	short  atomic.Bool  // the container has little free memory
	wake   chan struct{}
	log    *slog.Logger

	mu     sync.Mutex
	room   int64 // bytes that may be charged now: memory, or what is charged while full
	full   bool  // the container has no memory for more, or is not measured
	used   int64
	lent   int64 // bytes of large buffers, which are in no charge
	long   int64 // the number of streams that may have such
	routes []*Charges

	clients map[clientKey]*client
	largest clientHeap
	free    []*client // unused, for the next clients
	gone    []Holder  // a buffer of shed
}

// New makes an account. The logger may be nil.
func New(l Limits, log *slog.Logger) *Account {
	log = cmp.Or(log, slog.New(slog.DiscardHandler))
	a := &Account{
		memory: max(l.Memory, 1), began: time.Now(), log: log, wake: make(chan struct{}, 1),
		clients: map[clientKey]*client{},
	}
	a.room, a.full = a.memory, true
	a.price = a.memory / int64(max(l.Descriptors, 1))
	return a
}

// Charges counts the charges of one route's connections and requests.
type Charges struct {
	account *Account
	name    string

	// Guarded by the account's mutex.
	used    int64
	evicted uint64
	refused [refusals]uint64
	logged  loggedCounts
}

// Route returns a route by its name, and makes it the first time. A nil account returns nil.
func (a *Account) Route(name string) *Charges {
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
	r := &Charges{account: a, name: name}
	a.routes = append(a.routes, r)
	return r
}

// Forget drops a route and its counters, once all of its charges have been released. It keeps a route that has charges.
func (a *Account) Forget(name string) {
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.routes = slices.DeleteFunc(a.routes, func(r *Charges) bool { return r.name == name && r.used == 0 })
}

// Admit charges a connection or request to a client. If it returns another refusal than [Admitted], nothing is charged.
func (r *Charges) Admit(l *Charge, h Holder, from netip.Addr, cost Cost) Refusal {
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

// admit charges a client, if no more than bound is in use then. The caller holds mu.
func (a *Account) admit(l *Charge, from netip.Addr, charge, bound int64, connection bool, gone *victims) Refusal {
	c := a.clientOf(clientKey{from, l.route})
	if connection && a.now.Load() < c.barred {
		return Memory
	}
	if c.charges.Len() == 0 { // a client without a connection on the route gets in, under pressure too
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
	l.progress.Store(a.now.Load())
	c.add(l)
	a.add(l, charge)
	return Admitted
}

// bar keeps a client whose request was refused from opening connections for a while, unless the container has memory.
// The caller holds mu.
func (a *Account) bar(c *client) {
	if a.full {
		c.barred = a.now.Load() + int64(barTime)
	}
}

// charge is the number of bytes that a cost is charged as.
func (a *Account) charge(c Cost) int64 { return max(c.Memory, int64(c.Descriptors)*a.price) }

// add changes a charge, which a client has. The caller holds mu.
func (a *Account) add(l *Charge, bytes int64) {
	a.used += bytes
	l.bytes += bytes
	l.route.used += bytes
	l.client.used += bytes
	a.largest.fix(l.client)
}

// makeRoom evicts charges until a client's charge of need bytes fits below bound. The caller holds mu.
func (a *Account) makeRoom(c *client, need, bound int64, gone *victims) Refusal {
	bound = max(bound, a.used) // the charge may take the place of others
	for {
		var l *Charge
		greedy := c.used+need > a.memory/clientShare
		switch {
		case !greedy && a.used+need <= bound:
			return Admitted
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

// victim is the charge to evict for a client's charge. It is nil where the client itself has the largest charge. The
// caller holds mu.
func (a *Account) victim(c *client, need int64) *Charge {
	now := a.now.Load()
	if top := a.largest[0]; top != c && top.used >= much*(c.used+need) {
		return top.oldest(now)
	}
	if l := c.oldest(now); l != nil && l.stale() {
		return l
	}
	// No client has much more than the others: a stale connection is evicted.
	for _, each := range a.largest[:min(len(a.largest), looks)] {
		if l := each.oldest(now); l != nil && l.stale() {
			return l
		}
	}
	return nil
}

// evict takes a charge off the account. It forgets the charge's client if that has no other one, unless it is by. The
// caller holds mu, and calls the holder's Evict after it has let go of mu.
func (a *Account) evict(l *Charge, by *client) {
	c := l.client
	l.route.evicted++
	a.settle(l)
	a.release(l)
	if c != by {
		a.forget(c)
	}
}

// release takes a charge off the account. The caller holds mu, and calls forget for the client.
func (a *Account) release(l *Charge) {
	a.add(l, -l.bytes)
	l.client.remove(l)
}

// shed evicts charges until that sums up to so many bytes: of the client with the largest charge, the one without
// progress for longest, each time.
func (a *Account) shed(bytes int64) {
	if bytes <= 0 {
		return
	}
	a.mu.Lock()
	gone := a.gone[:0]
	for bytes > 0 && a.used > 0 {
		l := a.largest[0].oldest(a.now.Load())
		bytes -= l.bytes
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

// victims are the holders to evict after the account's mutex is let go.
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
