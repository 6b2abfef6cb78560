package datagram

import (
	"errors"
	"net/netip"
	"time"
)

// A Handler is a protocol on top of the NAT. Its methods are called by the worker's goroutine only. Payloads are valid
// during the call.
type Handler[T any] interface {
	// Client is called for a datagram of a client, with its session if there is one.
	Client(w *Worker[T], s *Session[T], d Datagram)
	// Server is called for a datagram that reached a session's own socket, from any address. True passes it on to the
	// client as it is.
	Server(w *Worker[T], s *Session[T], from Peer, data []byte) bool
	// Refused is called when the session's endpoint has refused a datagram (ICMP port unreachable).
	Refused(w *Worker[T], s *Session[T])
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

// A Session is one client address and port, the address that it asked, and a socket of its own towards the endpoint.
type Session[T any] struct {
	Client    Peer
	Asked     netip.Addr
	Interface uint32
	Endpoint  Peer // where the next datagram goes
	// Transparent tells whether the endpoint sees the client's address.
	Transparent bool
	State       T

	socket  *Socket
	token   Token
	active  time.Time // the last datagram of either side
	stepped time.Time // the last step of the client; the beginning or the end, where there was none since
	steps   uint64
	rank    rank
	groups  [lists]*group[T] // by list; nil where there is none
	links   [lists]links[T]
}

// flow identifies a session: a client that asks two addresses gets its answers from each.
type flow struct {
	client Peer
	asked  netip.Addr
}

func (s *Session[T]) flow() flow { return flow{s.Client, s.Asked} }

// Options are shared by the workers of one front.
type Options struct {
	Limits *Limits
	// Pick chooses an endpoint for a client; it must not block.
	Pick func(client netip.Addr) (netip.AddrPort, error)
	// Transparent sessions send from their clients' addresses, where those can be sources towards their endpoints.
	Transparent bool
}

// Report reports to the pool of endpoints: nil when an endpoint has answered, an error when it refused a datagram or
// did not answer. A Report may itself be nil.
type Report func(endpoint netip.AddrPort, err error)

// ErrRefused means that no socket listens at an endpoint, ErrNoAnswer that the endpoint sent no answer.
var (
	ErrRefused  = errors.New("endpoint refused a datagram: nobody listens there")
	ErrNoAnswer = errors.New("endpoint did not answer")
)

// Well reports an answer.
func (r Report) Well(p Peer) { r.say(p, nil) }

// Refused reports that an endpoint has refused a datagram.
func (r Report) Refused(p Peer) { r.say(p, ErrRefused) }

// NoAnswer reports silence.
func (r Report) NoAnswer(p Peer) { r.say(p, ErrNoAnswer) }

func (r Report) say(p Peer, err error) {
	if r != nil {
		r(p.AddrPort, err)
	}
}

// Send sends data from the session's own socket to a server.
func (s *Session[T]) Send(data []byte, to Peer) error {
	err := s.socket.SendTo(data, to)
	if err != nil {
		s.socket.DrainErrors(func(Peer) {}) // the error may be an earlier datagram's
		err = s.socket.SendTo(data, to)
	}
	return err
}

// GrowBuffers asks for room for bytes in the session's own socket.
func (s *Session[T]) GrowBuffers(bytes int) { s.socket.GrowBuffers(bytes) }
