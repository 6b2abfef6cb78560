package relay

import (
	"net/netip"

	"github.com/tinkerbell/stack/pkg/relay/server"
)

// tellArrived tells of a message that arrived so.
func tellArrived(w *worker, m []byte, a *arrival, to *server.Targets, now int64, drop Drop) {
	w.arrival = *a
	w.arrival.b, w.arrival.at = m, 0
	w.tellRequest(&w.arrival, to, now, drop)
}

// tellBack tells of a server's message.
func tellBack(w *worker, m []byte, o *origin, from netip.AddrPort, now int64, drop Drop) {
	w.back.origin, w.back.message = *o, m
	w.tellReply(&w.back, from, now, drop)
}
