package relay

import (
	"encoding/binary"
	"net/netip"

	"github.com/tinkerbell/stack/pkg/dhcp6"
	"github.com/tinkerbell/stack/pkg/relay/admit"
	"github.com/tinkerbell/stack/pkg/relay/server"
)

// reply6 decides about a server's message, and finds its destination. The message for that client or relay agent is
// m.Inner(). It notes in out whose it is.
func (w *worker) reply6(
	m dhcp6.Message, from netip.Addr, targets *server.Targets, now int64, out *back,
) (drop Drop) {
	r := w.relay
	out.origin, out.waited, out.found = origin{}, 0, false
	if drop := ofMessage6[m.Check(dhcp6.HopLimit+1)]; drop != None {
		return drop
	}
	if len(r.config.TrustedServers) > 0 && !within(r.config.TrustedServers, from) {
		return UntrustedServer
	}
	for level := m; level.IsRelay(); level = level.Inner() {
		if level.Type() != dhcp6.RelayReply {
			return NotAReply
		}
	}
	client, around := m.Innermost()
	if around == nil || fromClient(client.Type()) || client.Type() == dhcp6.Reconfigure { // which answers no request
		return NotAReply
	}
	k := r.keyOf6(client, m.Peer())
	o, found := r.pending.Peek(k, now)
	if w.signer != nil {
		o, found, drop = w.vouch6(m, client, &k, o, found, from, targets, now)
	}
	out.origin = o
	switch {
	case drop != None:
		return drop
	case !found:
		return r.unsolicited(m, from, now)
	}
	if o.link != m.Link() || !r.isForListener(m, o.listener) {
		return WrongLink
	}
	_, waited, first, _, mayPass := r.pending.MatchReply(k, senderOf(from), now)
	if !mayPass {
		return r.repeated(m, from, now)
	}
	out.waited, out.found = waited, true
	if first {
		r.metrics.answered(waited)
	}
	answer := admit.Other
	switch t := client.Type(); {
	case t == dhcp6.Advertise:
		answer = admit.Offered
	case t == dhcp6.Reply && client.Grants():
		answer = admit.Granted
	}
	r.gate(o.listener, netip.Addr{}).Answered(o.client, answer, first, now)
	r.servers.Heard(from, targets.All, now)
	return None
}

// vouch6 decides about a reply where there is a key: peer address and transaction can be guessed or overheard, so the
// token that was sent has to come back. A token tells of a message that is not known here (relayed by another replica
// or before a restart), which is remembered then.
func (w *worker) vouch6(
	m, client dhcp6.Message, k *key, o origin, found bool, from netip.Addr, targets *server.Targets, now int64,
) (origin, bool, Drop) {
	r := w.relay
	signed, valid, foreign := w.interfaceID(m, client, now)
	switch {
	case foreign && found: // an Interface-Id that this relay never sends
		return o, true, r.badToken(m, from, now)
	case foreign:
		return o, false, r.unsolicited(m, from, now)
	case found && !valid:
		return o, true, r.tokenMissing(m, from, targets, now, "this server does not repeat the Interface-Id (RFC 9915 "+
			"section 21.18): take another one, or leave TOKEN_KEY unset")
	case found || !valid:
		return o, found, None
	}
	if !m.Inner().IsRelay() { // for a client, the token has its MAC address
		signed.owner = signed.mac
		signed.client, _ = r.tagsOf(&arrival{listener: signed.listener}, signed.owner, k.id)
	}
	// Its replies are to be counted, too, but none as its first: it is not known when it was asked.
	r.pending.RememberAnswered(*k, signed, now)
	return signed, true, None
}

// fromClient tells whether clients send messages of a type and servers never do. Types that are not known are relayed
// in both directions (RFC 7283 section 4).
func fromClient(t dhcp6.Type) bool {
	return t <= dhcp6.DHCPv4Query && !t.FromServer()
}

// isForListener tells whether the Interface-Id of a reply, if it has one, names a listener. The server has to repeat it
// (RFC 9915 section 21.18); without one the pending request tells where the reply goes. Behind the name is the token.
func (r *Relay) isForListener(m dhcp6.Message, listener int16) bool {
	value, found := m.Option(dhcp6.OptionInterfaceID)
	if !found {
		return true
	}
	name, want := value, r.nameOf(listener)
	if len(r.config.TokenKey) > 0 && len(value) == len(want)+tokenLen6 {
		name = value[:len(want)]
	}
	return string(name) == want
}

// senderOf is a hash of a server's address.
func senderOf(from netip.Addr) uint8 {
	ip := from.As16()
	return uint8((binary.BigEndian.Uint64(ip[:]) ^ binary.BigEndian.Uint64(ip[8:])) * 0x9e3779b97f4a7c15 >> 56)
}
