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

// queue has the waiting requests of one listener, or those that were sent to this host, while more machines ask than
// the servers answer. A request that need not wait is not sent by the queue.
type queue struct {
	*worker // of the goroutine that sends requests which have waited
	*admit.Queue[waiting]
	index   int
	targets *server.Targets // of one release
}

// waiting is a request that waits, edited for the servers.
type waiting struct {
	key    key
	origin origin
}

func newQueue(r *Relay, index int) *queue {
	name := unicastLabel
	if index != unicast {
		name = r.config.Listeners[index].Name
	}
	limit := admit.Limit{Rate: r.config.NewcomerRate, Burst: admit.NewcomerBurst}
	return &queue{worker: newWorker(r, index, name), index: index, Queue: admit.NewQueue[waiting](limit, r.limits)}
}

// queue returns the queue of a listener, of the trusted relay agents' unicasts, or of all other unicasts: the
// requests of a pod do not hold back the machines behind a router.
func (r *Relay) queue(listener int16, sender [4]byte) *queue {
	if listener == unicast && r.agents != nil && within(r.config.TrustedRelays, sender) {
		return r.agents
	}
	return r.queues[listener-unicast]
}

// waiting is how many requests wait.
func (r *Relay) waiting() float64 {
	n := 0
	for _, q := range r.queues {
		n += q.Waiting()
	}
	return float64(n)
}

// crowded tells whether more machines ask than the servers answer.
func (r *Relay) crowded(now int64) bool {
	return slices.ContainsFunc(r.queues, func(q *queue) bool { return q.Crowded(now) })
}

// ask decides about a request: it is to be sent now (slot is nil), to be put into a slot by Keep, or to be dropped.
func (q *queue) ask(m dhcp.Message, a *arrival, now int64) (slot *admit.Slot[waiting], drop Drop) {
	asker := admit.Asker{
		Tag: a.client, XID: m.XID(), Unicast: a.listener == unicast, Requests: m.Type() == dhcp.Requests,
	}
	slot, refused := q.Ask(&asker, len(m)+dhcp.MaxAgent+2, now)
	switch refused {
	case admit.Client:
		return nil, ClientLimit
	case admit.Total:
		return nil, TotalLimit
	case admit.Newcomers:
		q.relay.logLimiter.WarnAt(now, "more new machines ask than the servers answer", func() []any {
			return []any{"listener", q.name, "waiting", q.Waiting(),
				"remedy", "look for a flood, or servers that are down; machines that were served before are not held back"}
		})
		return nil, NewcomerLimit
	default:
		return slot, None
	}
}

// answered notes a reply to a client.
func (q *queue) answered(client uint64, m dhcp.Message, first bool, now int64) {
	answer := admit.Other
	switch t := m.Type(); {
	case t == dhcp.Offer:
		answer = admit.Offered
	case (t == dhcp.Ack || t == dhcp.BOOTP) && m.Yiaddr() != [4]byte{}: // an INFORM's ACK gives nothing
		answer = admit.Granted
	}
	q.Answered(client, answer, first, now)
}

// run sends waiting requests as the queue allows, until ctx is done.
func (q *queue) run(ctx context.Context) error {
	q.Run(ctx, q.relay.now, q)
	return nil
}

// Send implements admit.Handler.
func (q *queue) Send(note *waiting, b []byte, now int64) {
	r := q.relay
	q.targets = r.targets.Load()
	port, m := r.metrics.Port(q.index), dhcp.Message(b)
	drop := missing(q.targets)
	q.setClock(r, now)
	q.tellWaiting(note, m, q.targets, now, drop)
	if drop != None {
		port.Dropped(toServer, drop)
		return
	}
	r.remember(m, note.key, note.origin, now)
	port.Relayed(toServer, int(m.Type()))
	q.send(m, q.targets, now, server.Machine(note.origin.client, note.origin.firmware))
	if r.verbose {
		r.logMessage("relayed request", q.name, m)
	}
}

// Flush implements admit.Handler.
func (q *queue) Flush() {
	if q.targets != nil {
		q.sender.Flush(q.targets)
		q.targets = nil
	}
}

// Refused implements admit.Handler.
func (q *queue) Refused(note *waiting, b []byte, now int64) {
	q.setClock(q.relay, now)
	q.tellWaiting(note, b, q.relay.targets.Load(), now, NewcomerLimit)
	q.relay.metrics.Port(q.index).Dropped(toServer, NewcomerLimit)
}

// clientOf is a client's tag: that of its hardware address on a listener, or in the unicasts of one sender. Where a
// client shows no hardware address (InfiniBand, RFC 4390) it is that of the client identifier; where it shows neither
// it is zero.
func (r *Relay) clientOf(k key, m dhcp.Message, listener int16, sender [4]byte) uint64 {
	c := client{chaddr: k.chaddr, listener: listener}
	if listener == unicast {
		c.sender = sender
	}
	if k.hlen == 0 {
		id, found := m.Option(dhcp.OptionClientID)
		if !found {
			return 0
		}
		binary.NativeEndian.PutUint64(c.chaddr[:], maphash.Bytes(r.seed, id))
		c.byID = true
	}
	return max(maphash.Comparable(r.seed, c), 1)
}

// client identifies a client.
type client struct {
	chaddr   [16]byte
	listener int16
	sender   [4]byte
	byID     bool
}
