package relay6

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/tinkerbell/stack/pkg/dhcp6"
	"github.com/tinkerbell/stack/pkg/relay/admit"
	"github.com/tinkerbell/stack/pkg/relay/server"
)

// reply decides about a server's message, and finds its destination. The message for that client or relay agent is
// m.Inner().
func (d *worker) reply(m dhcp6.Message, from netip.Addr, to *server.Targets, now int64) (o origin, drop Drop) {
	r := d.relay
	d.waited = 0
	if drop := ofMessage(m.Check(dhcp6.HopLimit + 1)); drop != None {
		return o, drop
	}
	if len(r.config.TrustedServers) > 0 && !within(r.config.TrustedServers, from.As16()) {
		return o, UntrustedServer
	}
	for level := m; level.IsRelay(); level = level.Inner() {
		if level.Type() != dhcp6.RelayReply {
			return o, NotAReply
		}
	}
	client, around := m.Innermost()
	if around == nil || fromClient(client.Type()) {
		return o, NotAReply
	}
	if client.Type() == dhcp6.Reconfigure {
		return d.reconfigure(m, client, from, to)
	}
	k := r.keyOf(client, m.Peer())
	o, waited, first, found := r.pending.Match(k, now)
	signed, known, read := d.interfaceID(m, client, now)
	switch {
	case !read: // an Interface-Id that this relay never sends
		if found {
			return o, r.refusedToken(m, client, from, now)
		}
		return o, r.unsolicited(m, client, from, now)
	case d.signer != nil && known: // found or not: by this relay, by another replica or before a restart
		if !found {
			o, found = signed, true
			if !m.Inner().IsRelay() { // for a client, the token has its MAC address
				o.owner = o.mac
				o.client, _ = r.namesOf(&arrival{listener: o.listener}, o.owner, k.duid, false)
			}
			r.pending.Remember(k, o, now) // so that its replies are counted, too
			r.pending.Match(k, now)
		}
	case d.signer != nil && found: // peer address and transaction can be guessed or overheard
		r.servers.Heard(from, to.All, now)
		r.logLimiter.WarnAt(now, "dropped a reply without its token", func() []any {
			return append(saidBy(m, client, from), "remedy",
				"this server does not repeat the Interface-Id (RFC 9915 section 21.18): "+
					"take another one, or leave TOKEN_KEY unset")
		})
		return o, TokenMissing
	}
	if !found {
		return o, r.unsolicited(m, client, from, now)
	}
	if o.link != m.Link() || !r.names(m, o.listener) {
		return o, WrongLink
	}
	if !r.pending.Reply(k, senderOf(from)) {
		r.logLimiter.WarnAt(now, "dropped repeated replies to one request", func() []any {
			return append(saidBy(m, client, from),
				"remedy", "find what repeats the server's packets, or who sends in its name")
		})
		return o, ReplyLimit
	}
	d.waited = waited
	if first {
		r.metrics.Answered(waited)
	}
	answer, given := admit.Other, server.Other
	switch t := client.Type(); {
	case t == dhcp6.Advertise:
		answer, given = admit.Offered, server.Offered
	case t == dhcp6.Reply && client.Grants():
		answer, given = admit.Granted, server.Granted
	}
	r.queue(o.listener).Answered(o.client, answer, first, now)
	r.servers.Answered(from, to.All, now, server.Machine(o.client, o.firmware), given)
	return o, None
}

// fromClient tells whether clients send messages of a type and servers never do. Types that are not known are relayed
// in both directions (RFC 7283 section 4).
func fromClient(t dhcp6.Type) bool {
	return t <= dhcp6.DHCPv4Query && !t.FromServer()
}

// names tells whether the Interface-Id of a reply, if it has one, names a listener. The server has to repeat it (RFC
// 9915 section 21.18); without one the pending request tells where the reply goes. Behind the name is the token.
func (r *Relay) names(m dhcp6.Message, listener int16) bool {
	value, found := m.Option(dhcp6.OptionInterfaceID)
	if !found {
		return true
	}
	name, want := value, r.nameOf(listener)
	if len(r.config.TokenKey) > 0 && len(value) == len(want)+tokenLen {
		name = value[:len(want)]
	}
	return string(name) == want
}

// nameOf is a listener's name, also for the log.
func (r *Relay) nameOf(listener int16) string {
	if listener == unicast {
		return unicastLabel
	}
	return r.config.Listeners[listener].Name
}

// senderOf is a hash of a server's address.
func senderOf(from netip.Addr) uint8 {
	ip := from.As16()
	return uint8((binary.BigEndian.Uint64(ip[:]) ^ binary.BigEndian.Uint64(ip[8:])) * 0x9e3779b97f4a7c15 >> 56)
}

// unsolicited notes a reply that matches nothing.
func (r *Relay) unsolicited(m, client dhcp6.Message, from netip.Addr, now int64) Drop {
	r.servers.Unsolicited()
	r.logLimiter.WarnAt(now, "dropped a reply that nobody asked for", func() []any { return saidBy(m, client, from) })
	return Unsolicited
}

// refusedToken notes a reply to a pending message with a token that is not that message's.
func (r *Relay) refusedToken(m, client dhcp6.Message, from netip.Addr, now int64) Drop {
	r.logLimiter.WarnAt(now, "dropped a reply with a wrong token", func() []any {
		return append(saidBy(m, client, from),
			"remedy", "somebody forges or repeats replies, or replicas have another TOKEN_KEY")
	})
	return BadToken
}

// saidBy describes a reply for the log.
func saidBy(m, client dhcp6.Message, from netip.Addr) []any {
	return []any{"source", from.String(), "type", client.Type().String(), "xid", fmt.Sprintf("%06x", client.XID()),
		"peer", netip.AddrFrom16(m.Peer()).String()}
}

// reconfigure decides about a RECONFIGURE, which answers no request (RFC 9915 section 18.3.11). It has to come from a
// server of this relay, to name a link of this relay or a relay agent that may send here, and to be one that a client
// may believe: with the transaction 0, the Reconfigure Message and the Authentication option (section 16.11).
func (d *worker) reconfigure(m, client dhcp6.Message, from netip.Addr, to *server.Targets) (o origin, drop Drop) {
	r := d.relay
	known := len(r.config.TrustedServers) > 0
	for i := range to.All {
		known = known || to.All[i].Addr.Addr() == from
	}
	_, message := client.Option(dhcp6.OptionReconfMessage)
	_, auth := client.Option(dhcp6.OptionAuth)
	if !known || !message || !auth || client.XID() != 0 || !answerable(m.Peer()) {
		return o, ReconfigureRefused
	}
	o = origin{port: clientPort, link: m.Link()}
	if m.Inner().IsRelay() {
		o.port = serverPort
		if port, found := m.RelayPort(); found && port != 0 {
			o.port = port
		}
	}
	_, named := m.Option(dhcp6.OptionInterfaceID)
	if r.byUnicast(m, named) && to.Source.IsValid() {
		o.listener, o.local = unicast, to.Source.As16()
		return o, None
	}
	for i, l := range r.listeners {
		o.listener = int16(i)
		p := l.Port()
		switch {
		case p == nil:
		case named && r.names(m, o.listener), !named && p.Info.address == o.link && o.link != [16]byte{}:
			return o, None
		}
	}
	return o, ReconfigureRefused
}

// byUnicast tells whether a RECONFIGURE goes to a relay agent that sends to this host, and not to one on a listener's
// link: the Interface-Id says so, or neither that nor the link address names a link (RFC 9915 section 19.2).
func (r *Relay) byUnicast(m dhcp6.Message, named bool) bool {
	if !m.Inner().IsRelay() || !global(m.Peer()) || !within(r.config.TrustedRelays, m.Peer()) {
		return false
	}
	if named {
		return r.names(m, unicast)
	}
	return m.Link() == [16]byte{}
}
