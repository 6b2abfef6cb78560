package tcp

import (
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/tinkerbell/stack/pkg/boot"
)

// outcome is how a session has gone so far, for its events.
type outcome struct {
	began    time.Time
	client   netip.Addr     // of the PROXY header; else the peer's
	endpoint netip.AddrPort // once connected
	refused  bool
	refusal  refusal      // why
	torn     atomic.Int32 // 1 + ending; 0 is an end in order
	bytes    [2]int64     // passed on, by direction; each belongs to that direction's copier
}

// reasonDrained is the reason of a session that a drain has closed.
const reasonDrained = "drained"

// Lengths of texts in an event, in bytes.
const (
	mostPlace  = 24
	mostReason = 24
)

// refuse counts a session that does not get an endpoint.
func (s *session) refuse(why refusal) {
	s.front.metrics.refused(why)
	s.outcome.refused, s.outcome.refusal = true, why
}

// established makes an event of a session that has its endpoint.
func (s *session) established(endpoint netip.AddrPort) {
	s.outcome.endpoint = endpoint
	if s.front.config.Event == nil {
		return
	}
	e := boot.Borrow()
	defer e.Return()
	e.Outcome, e.At = boot.Began, s.outcome.began.UnixNano()
	s.tell(e, "")
}

// tellEnd makes an event of a session's end, when its copiers have ended.
func (s *session) tellEnd() {
	if s.front.config.Event == nil {
		return
	}
	e := boot.Borrow()
	defer e.Return()
	now := time.Now()
	e.Outcome, e.At, e.Took = boot.Done, now.UnixNano(), now.Sub(s.outcome.began)
	e.Bytes = uint64(s.outcome.bytes[toClient])
	reason := ""
	switch torn := s.outcome.torn.Load(); {
	case s.outcome.refused:
		if !s.front.events.Take(e.At) {
			return
		}
		e.Outcome, reason = boot.Refused, s.outcome.refusal.String()
		if s.outcome.refusal == refusedBackend {
			e.Outcome = boot.NoServer
		}
	case torn > 0:
		e.Outcome, reason = boot.Torn, ending(torn-1).String()
	case s.aborted:
		e.Outcome, reason = boot.Torn, reasonDrained
	}
	s.tell(e, reason)
}

// tell completes an event and passes it on.
func (s *session) tell(e *boot.Event, reason string) {
	client := s.outcome.client
	if !client.IsValid() {
		client = s.peer.Addr()
	}
	e.Kind, e.Client, e.Route = boot.Stream, boot.Bytes(client), s.front.listener.Addr().Port()
	e.Endpoint, e.Port = boot.Bytes(s.outcome.endpoint.Addr()), s.outcome.endpoint.Port()
	boot.SetText(e, boot.Place, mostPlace, s.front.config.Route)
	boot.SetText(e, boot.Reason, mostReason, reason)
	s.front.config.Event(e)
}
