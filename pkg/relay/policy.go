package relay

import (
	"net/netip"
	"slices"

	"github.com/tinkerbell/stack/pkg/dhcp"
)

// arrival is how a request reached the relay.
type arrival struct {
	// listener is the index of the listener, or unicast.
	listener int16
	// source is the sender by its IP header.
	source endpoint
	// local is the address of this host that a unicast was sent to.
	local [4]byte
}

// relayed is a request that is ready to go to the servers.
type relayed struct {
	message dhcp.Message
	kind    dhcp.Type
}

// request decides about a request, and edits it in place for the servers. Message must have room behind it for
// padding.
func (r *Relay) request(m dhcp.Message, a arrival, to *routes, now int64) (relayed, Drop) {
	if drop := ofMessage(m.Check()); drop != None {
		return relayed{}, drop
	}
	if m.Op() != dhcp.Request {
		return relayed{}, ReplyFromClient
	}
	if int(m.Hops()) >= r.config.MaxHops {
		return relayed{}, HopLimit
	}
	if drop := to.usable(); drop != None {
		return relayed{}, drop
	}
	giaddr := m.Giaddr()
	if giaddr != ([4]byte{}) {
		if giaddr == to.giaddr {
			return relayed{}, Loop
		}
		if !r.trusts(a.source.ip) {
			r.notices.warn(now, "refused a relay agent", func() []any {
				return []any{"giaddr", dhcp.Addr(giaddr), "source", a.source, "remedy", "name its prefix in TRUSTED_RELAYS"}
			})
			return relayed{}, UntrustedRelay
		}
	}
	o := origin{listener: a.listener, giaddr: giaddr, from: a.source, local: a.local}
	kind := m.Type()
	r.pending.remember(keyOf(m), o, now)
	if a.listener == unicast {
		// The server has to answer this relay and not the one before it: only what passes here again leaves from
		// the address that was asked.
		m.SetGiaddr([4]byte{})
	}
	m.Relayed(to.giaddr)
	return relayed{message: dhcp.Pad(m), kind: kind}, None
}

// trusts tells whether an address belongs to a relay agent that may send requests here.
func (r *Relay) trusts(source [4]byte) bool { return within(r.config.TrustedRelays, source) }

func within(prefixes []netip.Prefix, ip [4]byte) bool {
	addr := netip.AddrFrom4(ip)
	return slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(addr) })
}

// reply decides about a reply, and makes it what the client or the relay agent is to get.
func (r *Relay) reply(m dhcp.Message, from endpoint, now int64) (origin, Drop) {
	if drop := ofMessage(m.Check()); drop != None {
		return origin{}, drop
	}
	if len(r.config.TrustedServers) > 0 && !within(r.config.TrustedServers, from.ip) {
		return origin{}, UntrustedServer
	}
	o, waited, first, found := r.pending.match(keyOf(m), now)
	if !found {
		r.notices.warn(now, "dropped a reply that nobody asked for", func() []any {
			return []any{"source", from, "type", m.Type().String(), "xid", m.XID(), "giaddr", dhcp.Addr(m.Giaddr())}
		})
		return origin{}, Unsolicited
	}
	if first {
		r.metrics.answered(waited)
	}
	if o.listener == unicast {
		m.SetGiaddr(o.giaddr)
	}
	return o, None
}
