package tcp

import (
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/tinkerbell/stack/pkg/boot"
)

// fate is what a session's event says.
type fate struct {
	began    time.Time
	client   netip.Addr     // from a PROXY header; else the peer's
	endpoint netip.AddrPort // once connected
	refused  refusal
	isOff    bool         // refused counts
	torn     atomic.Int32 // 1 + ending; 0 in order
	bytes    [2]int64     // passed on, by direction; each is written by that direction's copier
}

// reasonDrained ends a session that outlived the drain.
const reasonDrained = "drained"

// Lengths of texts in an event, in bytes.
const (
	mostPlace  = 24
	mostReason = 24
)

// refuse counts a session that does not get an endpoint.
func (s *session) refuse(why refusal) {
	s.front.metrics.refused(why)
	s.fate.refused, s.fate.isOff = why, true
}

// connected tells that a session has its endpoint.
func (s *session) connected(endpoint netip.AddrPort) {
	s.fate.endpoint = endpoint
	if s.front.config.Event == nil {
		return
	}
	e := boot.Borrow()
	defer e.Return()
	e.Outcome, e.At = boot.Began, s.fate.began.UnixNano()
	s.tell(e, "")
}

// tellEnd tells how a session has ended. Its copiers have ended.
func (s *session) tellEnd() {
	if s.front.config.Event == nil {
		return
	}
	e := boot.Borrow()
	defer e.Return()
	now := time.Now()
	e.Outcome, e.At, e.Took, e.Bytes = boot.Done, now.UnixNano(), now.Sub(s.fate.began), uint64(s.fate.bytes[toClient])
	reason := ""
	switch torn := s.fate.torn.Load(); {
	case s.fate.isOff:
		if !s.front.spare.Take(e.At) {
			return
		}
		e.Outcome, reason = boot.Refused, s.fate.refused.String()
		if s.fate.refused == refusedBackend {
			e.Outcome = boot.NoServer
		}
	case torn > 0:
		e.Outcome, reason = boot.Torn, ending(torn-1).String()
	case s.isAborted():
		e.Outcome, reason = boot.Torn, reasonDrained
	}
	s.tell(e, reason)
}

// tell completes an event.
func (s *session) tell(e *boot.Event, reason string) {
	client := s.fate.client
	if !client.IsValid() {
		client = s.peer.Addr()
	}
	e.Kind, e.Client, e.Route = boot.Stream, boot.Bytes(client), s.front.listener.Addr().Port()
	e.Endpoint, e.Port = boot.Bytes(s.fate.endpoint.Addr()), s.fate.endpoint.Port()
	boot.SetText(e, boot.Place, mostPlace, s.front.config.Route)
	boot.SetText(e, boot.Reason, mostReason, reason)
	s.front.config.Event(e)
}

// isAborted is whether the session was ended from outside.
func (s *session) isAborted() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.aborted
}
