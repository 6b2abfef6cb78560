package relay

import (
	"net/netip"

	"github.com/tinkerbell/stack/pkg/relay/admit"
	"github.com/tinkerbell/stack/pkg/relay/server"
)

// queue is an [admit.Queue] whose requests are sent by the goroutine that runs it, with a worker of its own. A request
// that need not wait is not sent by it.
type queue struct {
	*worker // of the goroutine that sends requests which have waited
	*admit.Queue[waiting]
	targets *server.Targets // of the requests that Send was given since the last Flush
}

// waiting is a request that waits, edited for the servers.
type waiting struct {
	key    key
	origin origin
	kind   int
	giaddr [4]byte // as it arrived
}

func newQueue(r *Relay, index int) *queue {
	limit := admit.Limit{Rate: r.config.NewcomerRate, Burst: admit.NewcomerBurst}
	return &queue{worker: newWorker(r, index), Queue: admit.NewQueue[waiting](limit, r.limits)}
}

// queue returns the queue of a listener, of the trusted relay agents' unicasts, or of all other unicasts: the
// requests of a pod do not hold back the machines behind a router.
func (r *Relay) queue(listener int16, sender netip.Addr) *queue {
	switch {
	case listener != unicast:
		return r.queues[listener]
	case r.agents != nil && within(r.config.TrustedRelays, sender):
		return r.agents
	default:
		return r.unicasts
	}
}

// countWaiting returns how many requests wait.
func (r *Relay) countWaiting() float64 {
	n := 0
	for _, q := range r.queues {
		n += q.Waiting()
	}
	return float64(n)
}

// decide decides about a request: it is to be sent now (place is nil), to be put into a place by Keep, or
// to be dropped.
func (q *queue) decide(asker *admit.Asker, length int, now int64) (place *admit.Place[waiting], drop Drop) {
	place, refused := q.Ask(asker, length, now)
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
		return place, None
	}
}

// Send implements admit.Handler.
func (q *queue) Send(note *waiting, b []byte, now int64) {
	r := q.relay
	q.targets = r.targets.Load()
	drop := r.missing(q.targets)
	if drop == None {
		drop = q.remember(note.key, note.origin, now)
	}
	q.tellWaiting(note, b, q.targets, now, drop)
	if drop != None {
		q.counters.dropped(toServer, drop)
		return
	}
	q.pass(b, q.targets, now, note.kind)
}

// Flush implements admit.Handler.
func (q *queue) Flush() {
	if q.targets != nil {
		q.sender.Flush()
		q.targets = nil
	}
}

// Refused implements admit.Handler.
func (q *queue) Refused(note *waiting, b []byte, now int64) {
	q.tellWaiting(note, b, q.relay.targets.Load(), now, NewcomerLimit)
	q.counters.dropped(toServer, NewcomerLimit)
}
