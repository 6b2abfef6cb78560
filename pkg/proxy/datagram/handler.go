package datagram

import "net/netip"

// A Handler is a protocol on top of the NAT. The worker calls it in its goroutine. Payloads are valid during the call.
type Handler[T any] interface {
	// Client is called for a datagram of a client, with its session if there is one.
	Client(w *Worker[T], s *Session[T], d Datagram)
	// Server is called for a datagram that reached a session's own socket, from any address. True passes it on to the
	// client as it is.
	Server(w *Worker[T], s *Session[T], from Peer, data []byte) bool
	// Unreachable is called when the session's endpoint has refused a datagram (ICMP port unreachable).
	Unreachable(w *Worker[T], s *Session[T])
	// Due is called when the time of [Worker.CallAt] has come.
	Due(w *Worker[T], s *Session[T])
	// Closed is called once for every session that was opened.
	Closed(w *Worker[T], s *Session[T], why End)
	// Lost is called with the number of datagrams that were lost to a full receive buffer.
	Lost(n uint32)
	// Unsent is called with the number of datagrams to clients that the kernel did not take.
	Unsent(n int, err error)
}

// Datagram is one that came in at the listener.
type Datagram struct {
	Client    Peer
	Asked     netip.Addr // the local address it was sent to; invalid where answers cannot come from there
	Interface uint32     // the index of the interface it came in by
	Data      []byte
	Truncated bool
}

// End says why a session was closed.
type End uint8

// Ends.
const (
	EndClosed   End = iota // the protocol closed it
	EndIdle                // no datagram came for the idle time
	EndLingered            // it was finished and its time to linger is over
	EndEvicted             // its place was needed: it was finished, or its client was silent for longer than others
	EndReplaced            // its client began anew
	EndDrained             // the time to drain is over
)

// Options are what a worker is told by its front.
type Options struct {
	Limits *Limits
	// Pick chooses an endpoint for a client; it must not block.
	Pick func(client netip.Addr) (netip.AddrPort, error)
	// Transparent sessions send from their clients' addresses, where those can be sources towards their endpoints.
	Transparent bool
}
