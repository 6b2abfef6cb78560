package relay

import (
	"context"
	"encoding/binary"
	"hash/maphash"
	"slices"

	"github.com/tinkerbell/stack/pkg/dhcp"
	"github.com/tinkerbell/stack/pkg/relay/admit"
	"github.com/tinkerbell/stack/pkg/relay/server"
)

// room is where the requests of one listener, or those sent to this host, wait while more machines ask than the servers
// answer. It does not send what need not wait.
type room struct {
	*worker // of the goroutine that sends what has waited
	*admit.Room[waiting]
	index   int
	targets *server.Targets // of one release
}

// waiting is a request that waits, edited for the servers.
type waiting struct {
	key    key
	origin origin
}

func newRoom(r *Relay, index int) *room {
	name := unicastLabel
	if index != unicast {
		name = r.config.Listeners[index].Name
	}
	limit := admit.Limit{Rate: r.config.NewcomerRate, Burst: admit.NewcomerBurst}
	return &room{worker: newWorker(r, index, name), index: index, Room: admit.NewRoom[waiting](limit, r.limits)}
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
		n += w.Waiting()
	}
	return float64(n)
}

// crowded tells whether more machines ask than the servers answer.
func (r *Relay) crowded(now int64) bool {
	return slices.ContainsFunc(r.rooms, func(w *room) bool { return w.Crowded(now) })
}

// ask decides about a request: it goes to the servers now (no slot), waits in a slot until Keep, or is one too many.
func (w *room) ask(m dhcp.Message, a *arrival, now int64) (slot *admit.Slot[waiting], drop Drop) {
	asker := admit.Asker{
		Tag: a.client, XID: m.XID(), Unicast: a.listener == unicast, Requests: m.Type() == dhcp.Requests,
	}
	slot, served, refused := w.Ask(&asker, len(m)+dhcp.MaxAgent+2, now)
	a.served = served
	switch refused {
	case admit.Client:
		return nil, ClientLimit
	case admit.Total:
		return nil, TotalLimit
	case admit.Newcomers:
		w.relay.logLimiter.WarnAt(now, "more new machines ask than the servers answer", func() []any {
			return []any{"listener", w.name, "waiting", w.Waiting(),
				"remedy", "look for a flood, or servers that are down; machines that were served before are not held back"}
		})
		return nil, NewcomerLimit
	default:
		return slot, None
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
	w.Answered(client, answer, first, now)
}

// run sends what waits as its turn comes, until ctx is done.
func (w *room) run(ctx context.Context) error {
	w.Run(ctx, w.relay.now, w)
	return nil
}

// Send implements admit.Way.
func (w *room) Send(note *waiting, b []byte, now int64) {
	r := w.relay
	w.targets = r.targets.Load()
	port, m := r.metrics.Port(w.index), dhcp.Message(b)
	drop := missing(w.targets)
	w.setClock(r, now)
	w.tellWaiting(note, m, w.targets, now, drop)
	if drop != None {
		port.Dropped(toServer, drop)
		return
	}
	r.pending.Remember(note.key, note.origin, now)
	port.Relayed(toServer, int(m.Type()))
	w.send(m, w.targets, now, false)
	if r.verbose {
		r.logMessage("relayed request", w.name, m)
	}
}

// Flush implements admit.Way.
func (w *room) Flush() {
	if w.targets != nil {
		w.sender.Flush(w.targets)
		w.targets = nil
	}
}

// Refused implements admit.Way.
func (w *room) Refused(note *waiting, b []byte, now int64) {
	w.setClock(w.relay, now)
	w.tellWaiting(note, b, w.relay.targets.Load(), now, NewcomerLimit)
	w.relay.metrics.Port(w.index).Dropped(toServer, NewcomerLimit)
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

// client is what distinguishes two clients.
type client struct {
	chaddr   [16]byte
	listener int16
	sender   [4]byte
	byID     bool
}
