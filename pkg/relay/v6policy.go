package relay

import (
	"net/netip"

	"github.com/tinkerbell/stack/pkg/dhcp6"
	"github.com/tinkerbell/stack/pkg/frame"
	"github.com/tinkerbell/stack/pkg/relay/admit"
	"github.com/tinkerbell/stack/pkg/relay/server"
)

// headroom6 is the number of bytes left free in front of a packet: for the RELAY-FORW around a message with all of its
// options, or for the headers of a raw frame.
const headroom6 = 320

// ipAndUDP6 is the length of the headers around a message.
const ipAndUDP6 = frame.IPv6Len + frame.UDPLen

// request6 decides about the message b[at:], and wraps it in place for the servers: the bytes that it returns begin
// before at.
func (w *worker) request6(b []byte, at int, a *arrival, targets *server.Targets, now int64) ([]byte, Drop) {
	r, m := w.relay, dhcp6.Message(b[at:])
	a.relayed, a.kind = false, 0
	if drop := ofMessage6[m.Check(dhcp6.HopLimit)]; drop != None {
		return nil, drop
	}
	inner, around := m.Innermost()
	a.kind, a.relayed = inner.Type().Index(), around != nil
	switch {
	case !answerable6(a.source.ip):
		return nil, BadSource
	case m.Type().FromServer() || inner.Type().FromServer():
		return nil, ReplyFromClient
	case a.listener == unicast && around == nil:
		return nil, UnicastFromClient
	}
	if around != nil {
		if drop := w.checkForward(m, a, now); drop != None {
			return nil, drop
		}
	}
	if drop := r.missing(targets); drop != None {
		return nil, drop
	}
	k := r.keyOf6(inner, a.source.ip)
	owner := a.mac
	if around != nil {
		owner, _ = around.ClientLinkAddr()
	}
	tag, also := r.tagsOf(a, owner, k.id)
	a.client = tag
	asker := admit.Asker{Tag: tag, Also: also, XID: k.xid, IsRequest: inner.Type() == dhcp6.Request}
	if drop := w.admit(a, asker, now); drop != None {
		return nil, drop
	}
	o := origin{
		listener: a.listener, local: a.local, ifindex: a.ifindex, client: a.client,
		origin6: origin6{port: clientPort6, mac: a.mac, fromMAC: frame.LinkLocal(a.mac) == a.source.ip, owner: owner},
	}
	wrapped, drop := w.wrap(b, at, &k, a, &o, now)
	if drop != None {
		return nil, drop
	}
	if drop := w.remember(k, o, now); drop != None {
		return nil, drop
	}
	return wrapped, None
}

// answerable6 tells whether a reply can be sent to a source.
func answerable6(source [16]byte) bool {
	a := netip.AddrFrom16(source)
	return !a.IsUnspecified() && !a.IsMulticast() && !a.IsLoopback() && !a.Is4In6()
}

// checkForward decides about a RELAY-FORW. Its link address tells the server which addresses to give. The sender and
// the link address have to be trusted, since on a LAN a source is easily forged.
func (w *worker) checkForward(m dhcp6.Message, a *arrival, now int64) Drop {
	r := w.relay
	if m.Hops() >= dhcp6.HopLimit {
		return HopLimit
	}
	if r.own6(a.source.ip) {
		return Loop
	}
	trusted := within(r.config.TrustedRelays, a.source.addr())
	for level := m; level.IsRelay(); level = level.Inner() {
		link := level.Link()
		switch {
		case level.Type() == dhcp6.RelayReply:
			return ReplyFromClient
		case link != [16]byte{} && r.own6(link):
			return Loop
		case trusted && link != [16]byte{} && !within(r.config.TrustedRelays, netip.AddrFrom16(link)):
			w.logRefused(a, "link_address", link, now)
			return UntrustedLink
		}
	}
	if !trusted {
		w.logRefused(a, "link_address", m.Link(), now)
		return UntrustedRelay
	}
	return None
}

// logRefused logs that a relay agent was refused for an address in its message.
func (w *worker) logRefused(a *arrival, key string, address [16]byte, now int64) {
	w.relay.logLimiter.WarnAt(now, "refused a relay agent", func() []any {
		return []any{key, netip.AddrFrom16(address).String(), "source", a.source.addr().String(),
			"remedy", "name its prefix in TRUSTED_RELAYS"}
	})
}

// own6 tells whether this relay sends from an address, or names it as a link address.
func (r *Relay) own6(address [16]byte) bool {
	if targets := r.targets.Load(); targets.Source.IsValid() && targets.Source.As16() == address {
		return true
	}
	for _, v := range r.vlans {
		if open := v.Opened(); open != nil && (open.Info.local == address || open.Info.address == address) {
			return true
		}
	}
	return false
}

// global tells whether an address is valid beyond its link (RFC 9915 section 19.1.2: GUA or ULA).
func global(ip [16]byte) bool { return netip.AddrFrom16(ip).IsGlobalUnicast() }

// wrap puts a RELAY-FORW around a message (RFC 9915 section 19.1).
func (w *worker) wrap(b []byte, at int, k *key, a *arrival, o *origin, now int64) ([]byte, Drop) {
	m := dhcp6.Message(b[at:])
	head := dhcp6.Relay{Peer: a.source.ip}
	if a.link != nil {
		head.Link = a.link.address
	}
	options := w.options[:0]
	var fromPort uint16
	if a.relayed {
		head.Hops = m.Hops() + 1
		if global(a.source.ip) {
			head.Link = [16]byte{} // the inner RELAY-FORW tells the link (section 19.1.2)
		}
		o.port = serverPort6
		// A relay agent that sends from another port, and says so, is answered there (RFC 8357 section 4.2).
		if _, found := m.Option(dhcp6.OptionRelayPort); found && a.source.port != serverPort6 {
			o.port, fromPort = a.source.port, a.source.port
		}
	}
	o.link = head.Link
	options = w.appendInterfaceID(options, k, o, m, now)
	if !a.relayed {
		options = dhcp6.AppendClientLinkAddr(options, a.mac)
	}
	if fromPort != 0 {
		options = dhcp6.AppendRelayPort(options, fromPort)
	}
	start, ok := dhcp6.Forward(b, at, head, options)
	if !ok {
		return nil, NoRoom
	}
	return b[start:], None
}
