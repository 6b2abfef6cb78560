package relay6

import (
	"slices"

	"github.com/tinkerbell/stack/pkg/dhcp6"
	"github.com/tinkerbell/stack/pkg/relay/admit"
	"github.com/tinkerbell/stack/pkg/relay/server"
)

// room is where the messages of one listener, or those of relay agents sent to this host, wait while more machines ask
// than the servers answer. It does not send what need not wait.
type room struct {
	*worker // of the goroutine that sends what has waited
	*admit.Room[waiting]
	index   int
	targets *server.Targets // of one release
}

// waiting is a message that waits, wrapped for the servers.
type waiting struct {
	key    key
	origin origin
	kind   dhcp6.Type
}

func newRoom(r *Relay, index int) *room {
	limit := admit.Limit{Rate: r.config.NewcomerRate, Burst: admit.NewcomerBurst}
	return &room{
		worker: newWorker(r, index, r.nameOf(int16(index))), index: index, Room: admit.NewRoom[waiting](limit, r.limits),
	}
}

func (r *Relay) room(listener int16) *room { return r.rooms[listener-unicast] }

// waiting is how many messages wait.
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

// ask decides about a message of a client: it goes to the servers now (no slot), waits in a slot until Keep, or is one
// too many.
func (w *room) ask(m dhcp6.Message, a *arrival, also uint64, length int, now int64) (*admit.Slot[waiting], Drop) {
	asker := admit.Asker{
		Tag: a.client, Also: also, XID: m.XID(), Unicast: a.listener == unicast, Requests: m.Type() == dhcp6.Request,
	}
	slot, served, refused := w.Ask(&asker, length, now)
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

// Send implements admit.Way.
func (w *room) Send(note *waiting, b []byte, now int64) {
	r := w.relay
	w.targets = r.targets.Load()
	var drop Drop
	if len(w.targets.All) == 0 || !w.targets.Source.IsValid() {
		drop = NoServer
	} else {
		drop = w.remember(note.key, note.origin, now)
	}
	w.setClock(r, now)
	w.tellWaiting(note, b, w.targets, now, drop)
	if drop != None {
		w.metrics.Dropped(toServer, drop)
		return
	}
	w.metrics.Relayed(toServer, note.kind.Index())
	w.send(b, w.targets, now, false)
	if r.verbose {
		r.logMessage("relayed request", w.name, b)
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
	w.metrics.Dropped(toServer, NewcomerLimit)
}
