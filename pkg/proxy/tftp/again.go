package tftp

import "time"

const (
	// keptBlock is the longest datagram that is kept to be sent again, in bytes: a block in one Ethernet frame.
	keptBlock = 1500
	// askedAgain is how long after a block an ACK of the one before asks for it again. One that comes sooner is the
	// second ACK of a block that arrived twice, and an answer to it would have every later block sent twice (RFC 1123
	// section 4.2.3.1). Clients wait for a quarter of a second at least.
	askedAgain = 100 * time.Millisecond
)

// keep remembers the newest block of a file that is read in lockstep; transfer.observe has followed it.
func (t *transfer) keep(b []byte, now time.Time) {
	n, _ := block(b)
	if t.write || t.window != 1 || len(b) > keptBlock || unwrap(t.high, n) != t.high {
		return
	}
	t.newest, t.sent = append(t.newest[:0], b...), now
}

// missed tells whether an ACK asks for the newest block again: its client has waited for it in vain.
func (t *transfer) missed(op uint16, b []byte, now time.Time) bool {
	if op != opAck || t.write || t.ended || len(t.newest) == 0 || now.Sub(t.sent) < askedAgain {
		return false
	}
	kept, _ := block(t.newest)
	n, _ := block(b)
	return n == kept-1 && unwrap(t.high, kept) == t.high && t.acked+1 == t.high
}

// again sends the newest block once more. The server does not hear of the ACK: many ignore it, and some wait the longer
// for it, as Smee does, which then sends the block again 12 seconds later if the client has not given up.
func (h *handler) again(w *worker, s *session) {
	t := &s.State
	t.sent = w.Now()
	t.retransmits++
	h.meters.retransmits.Inc()
	h.spent(s, len(t.newest))
	w.Reply(s, t.newest)
}
