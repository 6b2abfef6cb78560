package shaper

import (
	"io"
	"net/netip"
)

// Flow is what a goroutine sends to one client by a route's rate. The zero Flow has no rate.
type Flow struct {
	// Shaper is asked anew for each piece: a rate may come, change and go meanwhile.
	Shaper *Shaper
	Client netip.Addr
	// Done ends the wait for a share of the rate, and so does an error of While, which is called from time to time. Both
	// may be nil.
	Done  <-chan struct{}
	While func() error
}

// Pass has n bytes sent in pieces, each as soon as the rate allows it. It ends early if send does.
func (f *Flow) Pass(n int64, send func(n int64) (sent int64, err error)) (total int64, err error) {
	for total < n {
		piece, rated := n-total, f.Shaper.On()
		if rated {
			if piece, err = f.Shaper.Take(f.Done, f.Client, piece, f.While); err != nil {
				return total, err
			}
		}
		sent, err := send(piece)
		total += sent
		if rated && sent < piece {
			f.Shaper.Return(f.Client, piece-sent)
		}
		if err != nil || sent < piece {
			return total, err
		}
	}
	return total, nil
}

// Write writes b to w.
func (f *Flow) Write(w io.Writer, b []byte) (int, error) {
	if !f.Shaper.On() {
		return w.Write(b)
	}
	total, err := f.Pass(int64(len(b)), func(n int64) (int64, error) {
		sent, err := w.Write(b[:n])
		b = b[sent:]
		return int64(sent), err
	})
	return int(total), err
}
