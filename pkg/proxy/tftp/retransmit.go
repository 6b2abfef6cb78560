package tftp

import "time"

const (
	// keptBlock is the longest datagram that is kept to be sent again, in bytes: a block in one Ethernet frame.
	keptBlock = 1500
	// An ACK of the block before the newest one asks for the newest one again, if it comes askedAgain or more after that
	// was sent. A sooner ACK is the second one of a block that arrived twice: an answer to it would have every later
	// block sent twice (RFC 1123 section 4.2.3.1). Clients wait for at least a quarter of a second before they ask again.
	askedAgain = 100 * time.Millisecond
)

// keep remembers the newest block of a file that is read block by block, after transfer.observe.
func (t *transfer) keep(b []byte, now time.Time) {
	n, _ := blockNumber(b)
	if t.agreed.window != 1 || len(b) > keptBlock || unwrap(t.high, n) != t.high {
		return
	}
	t.newest, t.sentAt = append(t.newest[:0], b...), now
}

// missed reports whether an ACK asks for the newest block again, because the client has not got it.
func (t *transfer) missed(op uint16, b []byte, now time.Time) bool {
	if op != opAck || t.ended || len(t.newest) == 0 || now.Sub(t.sentAt) < askedAgain {
		return false
	}
	kept, _ := blockNumber(t.newest)
	n, _ := blockNumber(b)
	return n == kept-1 && unwrap(t.high, kept) == t.high && t.acked+1 == t.high
}

// resend sends the newest block once more. The ACK is not passed on: many servers ignore it, and for some it makes the
// wait longer. Smee would send the block again 12 seconds later, and the client might have given up by then.
func (h *handler) resend(w *worker, s *session) {
	t := &s.State
	t.sentAt = w.Now()
	t.Resent++
	h.meters.retransmits.Inc()
	w.Reply(s, t.newest)
}
