package relay

import (
	"net/netip"

	"github.com/tinkerbell/stack/pkg/dhcp"
	"github.com/tinkerbell/stack/pkg/dhcp6"
	"github.com/tinkerbell/stack/pkg/relay/server"
)

// tellArrived tells of a message that arrived so.
func tellArrived(w *worker, m []byte, a *arrival, targets *server.Targets, now int64, drop Drop) {
	w.arrival = *a
	w.arrival.b, w.arrival.at = m, 0
	w.tellRequest(&w.arrival, targets, now, drop)
}

// tellBack tells of a server's message.
func tellBack(w *worker, m []byte, o *origin, from netip.AddrPort, now int64, drop Drop) {
	w.back.origin, w.back.message = *o, m
	w.tellReply(&w.back, from, now, drop)
}

// reply4 is the worker's, with the origin of the request that a reply answers.
func reply4(
	w *worker, m dhcp.Message, from netip.Addr, targets *server.Targets, now int64,
) (dhcp.Message, origin, Drop) {
	m, drop := w.reply4(m, from, targets, now, &w.back)
	return m, w.back.origin, drop
}

// reply6 is reply4 of DHCPv6.
func reply6(w *worker, m dhcp6.Message, from netip.Addr, targets *server.Targets, now int64) (origin, Drop) {
	drop := w.reply6(m, from, targets, now, &w.back)
	return w.back.origin, drop
}
