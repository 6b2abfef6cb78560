package tftp

import "github.com/tinkerbell/stack/pkg/proxy/shaper"

// A transfer holds its route's rate window by window: what makes a server send the next window is the client's ACK of
// the last one, and that waits until the window may be sent. No block is held, and none is lost. Meanwhile neither side
// gets what the other one repeats: the server would send the window twice (RFC 1123, section 4.2.3.1), and the client
// has what the server repeats.

// mostWindow is what is taken for a window at most, in bytes: firmware has 94 KiB at most. Of a larger one, the rest is
// taken with the next.
const mostWindow = 1 << 20

// allowance is what a transfer has of its route's rate.
type allowance struct {
	bytes   int64 // that were taken, less those that were sent since
	waiter  shaper.Waiter
	asked   int64  // bytes that the waiter waits for
	holding bool   // ack waits
	ack     []byte // the last one that the client sent
}

// allowed takes the bytes of the window that an ACK asks for; false where the ACK is held until there are as many.
func (h *handler) allowed(w *worker, s *session, ack []byte) bool {
	t, a := &s.State, &s.State.allowance
	if !h.config.Shaper.On() {
		a.bytes = 0
		return true
	}
	if a.holding {
		a.ack = append(a.ack[:0], ack...)
		return false
	}
	a.asked = min(int64(t.window)*int64(t.block), mostWindow) - a.bytes
	if n, _ := block(ack); a.asked <= 0 || t.complete && n == uint16(t.last) {
		return true // also behind the last block, or what had to be sent twice would be asked for
	}
	a.bytes += a.asked
	a.waiter.Ready = func() { w.Do(func() { h.goOn(s) }) }
	if h.config.Shaper.Ask(&a.waiter, s.Client.Addr(), a.asked) {
		return true
	}
	a.holding, a.ack = true, append(a.ack[:0], ack...)
	return false
}

// spent counts a datagram of blocks that we send again by ourselves: the next window waits for it, too. Without a rate
// nothing is counted, or a rate that comes would find a debt.
func (h *handler) spent(s *session, size int) {
	if h.config.Shaper.On() {
		s.State.allowance.bytes -= int64(max(size-headerSize, 0))
	}
}

// goOn sends the ACK that was held.
func (h *handler) goOn(s *session) {
	a := &s.State.allowance
	if !a.holding { // the transfer has ended
		return
	}
	a.holding = false
	if s.Send(a.ack, s.State.server) != nil {
		h.drop(DropUnsent)
	}
}

// giveBack returns what an ended transfer has not used.
func (h *handler) giveBack(s *session) {
	a := &s.State.allowance
	if a.holding && h.config.Shaper.Cancel(&a.waiter) {
		a.bytes -= a.asked
	}
	a.holding = false
	if a.bytes > 0 {
		h.config.Shaper.Return(s.Client.Addr(), a.bytes)
	}
	a.bytes = 0
}
