package tftp

import (
	"github.com/tinkerbell/stack/pkg/proxy/datagram"
	"github.com/tinkerbell/stack/pkg/proxy/shaper"
)

// A transfer keeps its route's rate window by window. The server sends the next window when it gets the client's ACK
// of the last one, so the proxy holds that ACK until the shaper has granted the window. No block is held, and none is
// lost. Meanwhile the proxy drops what either side repeats: a repeated ACK would have the server send the window twice
// (RFC 1123, section 4.2.3.1), and the client has the blocks that the server repeats.

// mostWindow bounds the bytes that are asked for one window: firmware has 94 KiB at most. The rest of a larger window
// is asked for with the next one.
const mostWindow = 1 << 20

// allowance has the bytes of its route's rate that a transfer was granted.
type allowance struct {
	// bytes are granted, or asked for, and not sent. Without a rate they are set to 0 before each window, so that what is
	// sent is a debt only until the next one.
	bytes   int64
	waiter  shaper.Waiter
	wanted  int64  // bytes that the waiter waits for
	holding bool   // the next window waits for its share
	ack     []byte // the client's last ACK, which waits as well where a server sends that window
}

// askForWindow asks the shaper for the window that the server will send when it gets this ACK. It returns false if the
// ACK is held until the window is granted; a newer ACK takes the held one's place.
func (h *handler) askForWindow(w *worker, s *session, ack []byte) (granted bool) {
	t, a := &s.State, &s.State.allowance
	if !h.config.Shaper.On() {
		a.bytes = 0
		return true
	}
	if a.holding {
		a.ack = append(a.ack[:0], ack...)
		return false
	}
	a.wanted = min(int64(t.agreed.window)*int64(t.agreed.blockSize), mostWindow) - a.bytes
	if n, _ := blockNumber(ack); a.wanted <= 0 || t.complete && n == uint16(t.last) {
		return true // the window is granted already, or this is the ACK of the last block
	}
	a.bytes += a.wanted
	a.waiter.Ready = func() { w.Do(func() { h.goOn(s) }) }
	if h.config.Shaper.Ask(&a.waiter, s.Client.Addr(), a.wanted) {
		return true
	}
	a.holding, a.ack = true, append(a.ack[:0], ack...)
	return false
}

// spent counts a block that the proxy itself sends again: the next window waits for its bytes, too. Without a rate
// nothing is counted, since a rate that is set later would find a debt.
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
		h.drop(datagram.DropUnsent)
	}
}

// returnAllowance gives back the bytes that an ended transfer has not used.
func (h *handler) returnAllowance(s *session) {
	a := &s.State.allowance
	if a.holding && h.config.Shaper.Cancel(&a.waiter) {
		a.bytes -= a.wanted
	}
	a.holding = false
	if a.bytes > 0 {
		h.config.Shaper.Return(s.Client.Addr(), a.bytes)
	}
	a.bytes = 0
}
