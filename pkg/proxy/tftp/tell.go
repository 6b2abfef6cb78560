package tftp

import (
	"github.com/tinkerbell/stack/pkg/boot"
	"github.com/tinkerbell/stack/pkg/proxy/datagram"
)

// Lengths of texts in an event, in bytes.
const (
	mostFile, mostOptions, mostMessage, mostPlace, mostReason = 160, 64, 64, 24, 24
)

// writes is the method of a transfer from a machine. One to it has none.
const writes = "write"

// tellBegin tells that a transfer has begun.
func (h *handler) tellBegin(s *session) {
	if h.config.Event == nil {
		return
	}
	e := boot.Borrow()
	defer e.Return()
	e.Outcome, e.At = boot.Began, s.State.started.UnixNano()
	h.fill(e, s, s.State.asked)
	h.name(e, s.State.write, "")
	h.config.Event(e)
}

// tellEnd tells how a transfer has ended.
func (h *handler) tellEnd(w *worker, s *session, outcome Outcome) {
	if h.config.Event == nil {
		return
	}
	t := &s.State
	e := boot.Borrow()
	defer e.Return()
	e.Outcome, e.At, e.Took = outcome.event(), w.Now().UnixNano(), w.Now().Sub(t.started)
	e.Bytes, e.Expected, e.Resent = t.bytes, t.size, uint32(t.retransmits)
	e.Block, e.Window = uint16(t.block), uint16(t.window)
	options, reason := t.agreed, outcome.String()
	switch outcome {
	case OutcomeCompleted:
		reason = ""
	case OutcomeServerError, OutcomeClientError:
		e.Status = min(t.code, 1<<16-2) + 1
	}
	h.fill(e, s, options)
	boot.SetText(e, boot.Message, mostMessage, t.message)
	h.name(e, t.write, reason)
	h.config.Event(e)
}

// tellRefused tells of a request that was not passed on.
func (h *handler) tellRefused(w *worker, d datagram.Datagram, r request, drop Drop) {
	if h.config.Event == nil || !h.spare.Take(w.Now().UnixNano()) {
		return
	}
	e := boot.Borrow()
	defer e.Return()
	e.Kind, e.Outcome, e.At = boot.TFTP, boot.Refused, w.Now().UnixNano()
	if drop == DropNoEndpoint {
		e.Outcome = boot.NoServer
	}
	e.Client, e.Route = boot.Bytes(d.Client.Addr()), h.port
	boot.SetText(e, boot.File, mostFile, r.file)
	h.name(e, r.op == opWrite, drop.String())
	h.config.Event(e)
}

// fill puts the transfer into an event. Options are those of the machine's request, or those of the server's OACK.
func (h *handler) fill(e *boot.Event, s *session, options string) {
	e.Kind, e.Client, e.Route = boot.TFTP, boot.Bytes(s.Client.Addr()), h.port
	e.Endpoint, e.Port = boot.Bytes(s.Endpoint.Addr()), s.Endpoint.Port()
	boot.SetText(e, boot.File, mostFile, s.State.file)
	boot.SetText(e, boot.Agent, mostOptions, options)
}

// name ends an event's texts.
func (h *handler) name(e *boot.Event, write bool, reason string) {
	if write {
		boot.SetText(e, boot.Method, len(writes), writes)
	}
	boot.SetText(e, boot.Place, mostPlace, h.config.Route)
	boot.SetText(e, boot.Reason, mostReason, reason)
}

// event is the boot event of an outcome.
func (o Outcome) event() boot.Outcome {
	switch o {
	case OutcomeCompleted, OutcomeServerError, OutcomeClientError:
		return boot.Done
	case OutcomeRefused, OutcomeNoAnswer:
		return boot.NoServer
	default:
		return boot.Torn
	}
}
