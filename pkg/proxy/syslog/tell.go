package syslog

import (
	"net/netip"
	"time"

	"github.com/tinkerbell/stack/pkg/boot"
	"github.com/tinkerbell/stack/pkg/proxy/datagram"
)

// Lengths of texts in an event, in bytes.
const (
	mostTag, mostText, mostPlace, mostReason = 48, 256, 24, 24
)

// teller makes one worker's events.
type teller struct {
	now   int64 // of the batch: Unix nanoseconds
	event boot.Event
	spare boot.Allowance // bounds the events of dropped lines
}

// begin is for a batch.
func (w *worker) begin() {
	if w.config.Event != nil {
		w.teller.now = time.Now().UnixNano()
	}
}

// tellLine tells of a line that is forwarded.
func (w *worker) tellLine(client, endpoint datagram.Peer, m *Message) {
	if w.config.Event == nil {
		return
	}
	e := w.fill(client)
	e.Endpoint, e.Port = boot.Bytes(endpoint.Addr()), endpoint.Port()
	e.Bytes, e.Priority = uint64(len(m.Text)), m.Priority
	boot.SetText(e, boot.Agent, mostTag, m.App)
	boot.SetText(e, boot.Message, mostText, m.Text)
	boot.SetText(e, boot.Place, mostPlace, w.config.Route)
	w.config.Event(e)
}

// tellDropped tells of a line that no endpoint took.
func (w *worker) tellDropped(client datagram.Peer, data []byte, why Drop) {
	if w.config.Event == nil || !w.teller.spare.Take(w.teller.now) {
		return
	}
	m, e := Parse(data), w.fill(client)
	e.Outcome, e.Priority = boot.NoServer, m.Priority
	boot.SetText(e, boot.Agent, mostTag, m.App)
	boot.SetText(e, boot.Message, mostText, m.Text)
	boot.SetText(e, boot.Place, mostPlace, w.config.Route)
	boot.SetText(e, boot.Reason, mostReason, why.String())
	w.config.Event(e)
}

// fill begins an event.
func (w *worker) fill(client datagram.Peer) *boot.Event {
	e := &w.teller.event
	e.Reset()
	e.Kind, e.At, e.Client, e.Route = boot.Syslog, w.teller.now, boot.Bytes(client.Addr()), w.listener.Local().Port()
	return e
}

// line puts a message into the batch, in the form of the route's source.
func (w *worker) line(i int, up *upstream, client, to datagram.Peer) {
	source := w.source(client.Addr(), to.Addr())
	var m Message
	if source == SourceRewrite || w.config.Event != nil {
		m = Parse(w.in.Data(i))
		w.tellLine(client, to, &m) // before the datagram is taken
	}
	switch source {
	case SourceNone:
		up.out.Take(w.in, i, to, netip.Addr{}, 0)
	case SourceTransparent:
		up.out.Take(w.in, i, to, client.Addr(), 0)
	case SourceRewrite:
		up.out.Push(m.Append(up.out.Next(), client.Addr()), to, netip.Addr{}, 0)
	}
}
