package udp

import (
	"net/netip"
	"slices"
	"sync/atomic"

	"github.com/tinkerbell/stack/internal/loglimit"
	"github.com/tinkerbell/stack/pkg/proxy/datagram"
)

type (
	worker  = datagram.Worker[state]
	session = datagram.Session[state]
)

// state is the state of a session.
type state struct {
	answered bool
	refused  bool
}

// handler is the protocol's part of the front.
type handler struct {
	meters  *meters
	trouble *loglimit.Limiter
	report  datagram.Report
	sources atomic.Pointer[[]netip.Prefix]
}

// mayBegin reports whether a client may begin a session.
func (h *handler) mayBegin(client netip.Addr) bool {
	sources := *h.sources.Load()
	return len(sources) == 0 ||
		slices.ContainsFunc(sources, func(p netip.Prefix) bool { return p.Contains(client) })
}

// Client passes a datagram on, in a new session if need be.
func (h *handler) Client(w *worker, s *session, d datagram.Datagram) {
	if drop := h.client(w, s, d); drop != datagram.NotDropped {
		h.meters.drops[drop].Inc()
		return
	}
	h.meters.traffic.Passed(datagram.FromClient, len(d.Data))
}

func (h *handler) client(w *worker, s *session, d datagram.Datagram) Drop {
	switch {
	case d.Client.Port() == 0:
		return datagram.DropPortZero
	case d.Truncated:
		return datagram.DropTruncated
	}
	if s == nil {
		if !h.mayBegin(d.Client.Addr()) {
			return DropSource
		}
		opened, drop, err := w.Open(d)
		if drop != datagram.NotDropped {
			h.trouble.Warn("udp datagram dropped", func() []any {
				return []any{"reason", drops.Name(drop), "client", d.Client.AddrPort, "error", err}
			})
			return drop
		}
		h.meters.live.Inc()
		s = opened
	} else if s.State.answered {
		w.Step(s)
	}
	if s.Send(d.Data, s.Endpoint) != nil {
		return datagram.DropUnsent
	}
	return datagram.NotDropped
}

// Server passes on a datagram that comes from the endpoint's address and port.
func (h *handler) Server(w *worker, s *session, from datagram.Peer, data []byte) bool {
	if from.AddrPort != s.Endpoint.AddrPort {
		h.meters.drops[datagram.DropStranger].Inc()
		h.trouble.Warn("datagram of a stranger dropped", func() []any {
			return []any{"stranger", from.AddrPort, "endpoint", s.Endpoint.AddrPort}
		})
		return false
	}
	if !s.State.answered {
		s.State.answered = true
		h.report.Well(s.Endpoint)
	}
	h.meters.traffic.Passed(datagram.FromServer, len(data))
	return true
}

// Unreachable ends the session, so that the client's next datagram picks an endpoint anew.
func (h *handler) Unreachable(w *worker, s *session) {
	s.State.refused = true
	h.report.Refused(s.Endpoint)
	w.CloseSession(s)
}

// Due is never called: sessions end by their own times.
func (h *handler) Due(*worker, *session) {}

// Closed counts a session that has ended.
func (h *handler) Closed(_ *worker, s *session, why datagram.End) {
	ending := EndingNoAnswer
	switch {
	case s.State.refused:
		ending = EndingUnreachable
	case why == datagram.EndDrained:
		ending = EndingDrained
	case why == datagram.EndEvicted:
		ending = EndingEvicted
	case s.State.answered:
		ending = EndingIdle
	}
	h.meters.live.Dec()
	h.meters.ended[ending].Inc()
}

// Lost counts the datagrams that a full receive buffer has lost.
func (h *handler) Lost(n uint32) {
	h.meters.drops[datagram.DropOverflow].Add(float64(n))
	h.trouble.Warn("udp datagrams lost in the receive buffer", func() []any {
		return []any{"count", n}
	})
}

// Unsent counts the datagrams that the kernel did not take.
func (h *handler) Unsent(n int, err error) {
	h.meters.drops[datagram.DropUnsent].Add(float64(n))
	h.trouble.Warn("datagrams to clients not sent", func() []any {
		return []any{"count", n, "error", err}
	})
}

var _ datagram.Handler[state] = (*handler)(nil)
