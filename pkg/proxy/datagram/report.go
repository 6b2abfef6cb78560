package datagram

import (
	"errors"
	"net/netip"
)

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
