package relay

import (
	"net/netip"

	"github.com/tinkerbell/stack/pkg/relay/server"
)

// tellArrived tells of a message that arrived so.
func tellArrived(d *worker, m []byte, a *arrival, to *server.Targets, now int64, drop Drop) {
	d.arrival = *a
	d.arrival.b, d.arrival.at = m, 0
	d.tellRequest(&d.arrival, to, now, drop)
}

// tellBack tells of a server's message.
func tellBack(d *worker, m []byte, o *origin, from netip.AddrPort, now int64, drop Drop) {
	d.back.origin, d.back.message = *o, m
	d.tellReply(&d.back, from, now, drop)
}
