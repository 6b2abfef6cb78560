package relay

import (
	"context"
	"encoding/binary"
	"hash/maphash"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tinkerbell/stack/pkg/dhcp"
	"github.com/tinkerbell/stack/pkg/relay/admit"
)

// room is where the requests of one listener, or those sent to this host, wait while more machines ask than the servers
// answer. It does not send what need not wait.
type room struct {
	*desk // of the goroutine that sends what has waited
	index int
	wake  chan struct{}

	crowdedAt atomic.Int64 // when a request last had to wait, or was refused; 0: never

	mu    sync.Mutex
	gate  *admit.Gate
	slots [admit.Places]waiting // untouched, and so not resident, until requests wait
	next  [batch]int32          // places; of run only
}

// waiting is a request that waits, edited for the servers.
type waiting struct {
	key    key
	origin origin
	place  int32
	class  admit.Class
	n      int
	bytes  [mostWaiting]byte
}

// mostWaiting is the longest request that may wait, in bytes. Longer ones go at once or not at all.
const mostWaiting = 2048

const (
	// newcomerBurst is how many requests of machines that were never served may be unanswered before the rest waits: two
	// thousand may be switched on at once.
	newcomerBurst = 2048
	// releaseEvery is the least time between two looks at what waits.
	releaseEvery = 5 * time.Millisecond
	// crowdedFor is how long after the last request that had to wait servers are not blamed for silence.
	crowdedFor = 30 * time.Second
)

func newRoom(r *Relay, index int) *room {
	name := unicastLabel
	if index != unicast {
		name = r.config.Listeners[index].Name
	}
	return &room{
		desk: newDesk(r, index, name), index: index, wake: make(chan struct{}, 1),
		gate: admit.NewGate(admit.Limit{Rate: r.config.NewcomerRate, Burst: newcomerBurst}),
	}
}

// room is that of a listener, of the trusted relay agents' unicasts, or of all other unicasts: what a pod sends does
// not hold back the machines behind a router.
func (r *Relay) room(listener int16, sender [4]byte) *room {
	if listener == unicast && r.agents != nil && within(r.config.TrustedRelays, sender) {
		return r.agents
	}
	return r.rooms[listener-unicast]
}

// waiting is how many requests wait.
func (r *Relay) waiting() float64 {
	n := 0
	for _, w := range r.rooms {
		n += w.waiting()
	}
	return float64(n)
}

// crowded tells whether more machines ask than the servers answer.
func (r *Relay) crowded(now int64) bool {
	return slices.ContainsFunc(r.rooms, func(w *room) bool { return w.crowded(now) })
}

// ask decides about a request: it goes to the servers now (no slot), waits in a slot until keep, or is one too many.
func (w *room) ask(m dhcp.Message, a *arrival, to *routes, now int64) (slot *waiting, drop Drop) {
	w.mu.Lock()
	defer w.mu.Unlock()
	a.served = w.gate.Served(a.client)
	drop = w.relay.limits.allow(a, now)
	if drop == ClientLimit && a.served && w.gate.Again(w.relay.transactionOf(a.client, m), now) &&
		w.relay.limits.repeats(a, now) {
		drop = None
	}
	if drop != None {
		return nil, drop
	}
	if drop := to.usable(); drop != None {
		return nil, drop
	}
	verdict, place, class := w.gate.Ask(a.client, m.Type() == dhcp.Requests, now)
	switch {
	case verdict == admit.Send:
		return nil, None
	case verdict == admit.Wait && len(m)+dhcp.MaxAgent+2 <= mostWaiting:
		slot = &w.slots[place]
		slot.place, slot.class = place, class
		return slot, None
	case verdict == admit.Wait:
		w.gate.Free(place)
	}
	w.crowdedAt.Store(now)
	return nil, NewcomerLimit
}

// keep has a request wait in its slot.
func (w *room) keep(slot *waiting, k key, o origin, m dhcp.Message, now int64) {
	slot.key, slot.origin = k, o
	slot.n = copy(slot.bytes[:], m)
	w.crowdedAt.Store(now)
	w.mu.Lock()
	w.gate.Put(slot.place, slot.class, o.client, now)
	first := w.gate.Waiting() == 1
	w.mu.Unlock()
	if first {
		w.rouse()
	}
}

// rouse has run look who is next.
func (w *room) rouse() {
	select {
	case w.wake <- struct{}{}:
	default: // it is about to
	}
}

// answered notes a reply to a client.
func (w *room) answered(client uint64, m dhcp.Message, first bool, now int64) {
	answer := admit.Other
	switch t := m.Type(); {
	case t == dhcp.Offer:
		answer = admit.Offered
	case (t == dhcp.Ack || t == dhcp.BOOTP) && m.Yiaddr() != [4]byte{}: // an INFORM's ACK gives nothing
		answer = admit.Granted
	}
	w.mu.Lock()
	w.gate.Answered(client, answer, first, now)
	waiting := w.gate.Waiting() > 0
	w.mu.Unlock()
	if waiting {
		w.rouse()
	}
}

// crowded tells whether requests had to wait, or were refused, of late.
func (w *room) crowded(now int64) bool {
	at := w.crowdedAt.Load()
	return at != 0 && now-at < crowdedFor.Nanoseconds()
}

func (w *room) waiting() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.gate.Waiting()
}

// run sends what waits as its turn comes, until ctx is done.
func (w *room) run(ctx context.Context) error {
	due := time.NewTimer(0)
	defer due.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-w.wake:
		case <-due.C:
		}
		if wait, more := w.release(w.relay.now()); more {
			due.Reset(max(wait, releaseEvery))
		}
	}
}

// release sends what may go, and returns when there may be more if requests still wait.
func (w *room) release(now int64) (wait time.Duration, more bool) {
	r := w.relay
	routes, verbose := r.routes.Load(), r.verbose()
	w.setClock(r, now)
	for n := batch; n == batch; {
		n = w.take(now)
		for _, place := range w.next[:n] {
			slot := &w.slots[place]
			metrics, m := r.metrics.port(w.index), dhcp.Message(slot.bytes[:slot.n])
			drop := routes.usable()
			w.tellWaiting(slot, routes, now, drop)
			if drop != None {
				metrics.dropped(toServer, drop)
				continue
			}
			r.pending.remember(slot.key, slot.origin, now)
			metrics.relayed(toServer, m.Type())
			w.send(m, routes, now, false)
			if verbose {
				r.logMessage("relayed request", w.name, m)
			}
		}
		w.flush(routes)
		w.mu.Lock()
		for _, place := range w.next[:n] {
			w.gate.Free(place)
		}
		wait, more = w.gate.Due(now), w.gate.Waiting() > 0
		w.mu.Unlock()
	}
	return wait, more
}

// take puts the places of those whose turn has come into next, and drops those that waited in vain.
func (w *room) take(now int64) (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for n < batch {
		verdict, place := w.gate.Next(now)
		switch verdict {
		case admit.Wait:
			return n
		case admit.Refuse:
			w.tellWaiting(&w.slots[place], w.relay.routes.Load(), now, NewcomerLimit)
			w.gate.Free(place)
			w.relay.metrics.port(w.index).dropped(toServer, NewcomerLimit)
		case admit.Send:
			w.next[n] = place
			n++
		}
	}
	return n
}

// clientOf is what a client is known by: its hardware address on a listener, or in what one sender of unicasts sent;
// where it shows no hardware address (InfiniBand, RFC 4390), its client identifier. Zero for one that shows neither.
func (r *Relay) clientOf(k key, m dhcp.Message, listener int16, sender [4]byte) uint64 {
	who := client{chaddr: k.chaddr, listener: listener}
	if listener == unicast {
		who.sender = sender
	}
	if k.hlen == 0 {
		id, found := m.Option(dhcp.OptionClientID)
		if !found {
			return 0
		}
		binary.NativeEndian.PutUint64(who.chaddr[:], maphash.Bytes(r.seed, id))
		who.byID = true
	}
	return max(maphash.Comparable(r.seed, who), 1)
}

// transactionOf is a tag of one transaction of a client.
func (r *Relay) transactionOf(client uint64, m dhcp.Message) uint64 {
	return maphash.Comparable(r.seed, transaction{client: client, xid: m.XID()})
}

type transaction struct {
	client uint64
	xid    uint32
}

// client is what distinguishes two clients.
type client struct {
	chaddr   [16]byte
	listener int16
	sender   [4]byte
	byID     bool
}
