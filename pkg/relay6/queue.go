package relay6

import (
	"slices"

	"github.com/tinkerbell/stack/pkg/dhcp6"
	"github.com/tinkerbell/stack/pkg/relay/admit"
	"github.com/tinkerbell/stack/pkg/relay/server"
)

// queue has the waiting messages of one listener, or those that relay agents sent to this host, while more machines ask
// than the servers answer. A message that need not wait is not sent by the queue.
type queue struct {
	*worker // of the goroutine that sends messages which have waited
	*admit.Queue[waiting]
	index   int
	targets *server.Targets // of one release
}

// waiting is a message that waits, wrapped for the servers.
type waiting struct {
	key    key
	origin origin
	kind   dhcp6.Type
}

func newQueue(r *Relay, index int) *queue {
	limit := admit.Limit{Rate: r.config.NewcomerRate, Burst: admit.NewcomerBurst}
	return &queue{
		worker: newWorker(r, index, r.nameOf(int16(index))), index: index, Queue: admit.NewQueue[waiting](limit, r.limits),
	}
}

func (r *Relay) queue(listener int16) *queue { return r.queues[listener-unicast] }

// waiting is how many messages wait.
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

// ask decides about a message of a client: it is to be sent now (slot is nil), to be put into a slot by Keep, or to be
// dropped.
func (q *queue) ask(m dhcp6.Message, a *arrival, also uint64, length int, now int64) (*admit.Slot[waiting], Drop) {
	asker := admit.Asker{
		Tag: a.client, Also: also, XID: m.XID(), Unicast: a.listener == unicast, Requests: m.Type() == dhcp6.Request,
	}
	slot, refused := q.Ask(&asker, length, now)
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

// Send implements admit.Handler.
func (q *queue) Send(note *waiting, b []byte, now int64) {
	r := q.relay
	q.targets = r.targets.Load()
	var drop Drop
	if len(q.targets.All) == 0 || !q.targets.Source.IsValid() {
		drop = NoServer
	} else {
		drop = q.remember(note.key, note.origin, now)
	}
	q.setClock(r, now)
	q.tellWaiting(note, b, q.targets, now, drop)
	if drop != None {
		q.metrics.Dropped(toServer, drop)
		return
	}
	q.metrics.Relayed(toServer, note.kind.Index())
	q.send(b, q.targets, now, server.Machine(note.origin.client, note.origin.firmware))
	if r.verbose {
		r.logMessage("relayed request", q.name, b)
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
	q.metrics.Dropped(toServer, NewcomerLimit)
}
