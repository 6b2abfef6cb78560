package tcp

import (
	"net/netip"
	"time"

	"github.com/tinkerbell/stack/pkg/record"
)

// draft is the record of a session in the making.
type draft struct {
	record.Exchange
	torn     *ending       // nil is an end in order
	bytes    [2]int64      // passed on, by direction
	recorded time.Duration // to the last record of progress
}

// refuse counts a session that does not get an endpoint.
func (s *session) refuse(why refusal) {
	s.front.metrics.refusals[why].Inc()
	s.draft.Outcome, s.draft.Reason = record.Refused, why.String()
	if why == refusedBackend {
		s.draft.Outcome = record.NoServer
	}
}

// established records a session that has its endpoint.
func (s *session) established(endpoint netip.AddrPort) {
	s.draft.Endpoint = endpoint
	began := s.draft.Exchange
	began.Outcome = record.Began
	s.front.config.Sink.Record(began)
}

// progress records, from time to time, how much has gone to the client.
func (s *session) progress() {
	took := time.Since(s.draft.Begin)
	if s.front.config.Sink == nil || took-s.draft.recorded < record.Progress {
		return
	}
	s.draft.recorded = took
	x := s.draft.Exchange
	x.Outcome, x.Took, x.Bytes = record.Began, took, uint64(s.draft.bytes[toClient])
	s.front.config.Sink.Record(x)
}

// recordEnd records a session's end, when nothing is passed on any more.
func (s *session) recordEnd() {
	x := s.draft.Exchange
	x.Took, x.Bytes = time.Since(x.Begin), uint64(s.draft.bytes[toClient])
	switch torn := s.draft.torn; {
	case x.Outcome != record.Done: // it was refused
	case torn != nil:
		x.Outcome, x.Reason = record.Torn, torn.String()
	case s.cut != "":
		x.Outcome, x.Reason = record.Torn, s.cut
	}
	s.front.config.Sink.Record(x)
}
