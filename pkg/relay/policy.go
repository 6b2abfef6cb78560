package relay

import (
	"hash/crc32"
	"net/netip"
	"slices"

	"github.com/tinkerbell/stack/pkg/dhcp"
	"github.com/tinkerbell/stack/pkg/relay/server"
)

// arrival is how a request reached the relay.
type arrival struct {
	// listener is the index of the listener, or unicast.
	listener int16
	// source is the sender by its IP header.
	source peer
	// local is the address of this host that a unicast was sent to.
	local [4]byte
	// agent is the listener's value of option 82.
	agent []byte
	// trusted tells that the listener may bring option 82 of its own.
	trusted bool
	// giaddr is that of the last message as it arrived.
	giaddr [4]byte

	// The method request sets these: client is the sender's tag; served tells that the servers gave it an address before,
	// and waits that its queue will send the request.
	client        uint64
	served, waits bool
}

// request decides about a request, and edits it in place for the servers. There must be room behind it for padding and
// option 82. Where a.waits is true afterwards, the request was copied, and is not to be sent.
func (d *worker) request(m dhcp.Message, a *arrival, to *server.Targets, now int64) (dhcp.Message, Drop) {
	r := d.relay
	if drop := ofMessage(m.Check()); drop != None {
		return m, drop
	}
	a.giaddr = m.Giaddr()
	if m.Op() != dhcp.Request {
		return m, ReplyFromClient
	}
	if int(m.Hops()) >= r.config.MaxHops {
		return m, HopLimit
	}
	giaddr, hasAgent := a.giaddr, m.HasAgent()
	switch {
	case giaddr != [4]byte{} && r.own(giaddr, to):
		return m, Loop
	case giaddr != [4]byte{} && !r.trusts(giaddr, a):
		r.logLimiter.WarnAt(now, "refused a relay agent", func() []any {
			return []any{"giaddr", dhcp.Addr(giaddr), "source", a.source.String(),
				"remedy", "name its prefix in TRUSTED_RELAYS"}
		})
		return m, UntrustedRelay
	case giaddr == [4]byte{} && hasAgent && !a.trusted && !within(r.config.TrustedRelays, a.source.ip):
		return m, UntrustedAgent
	case (giaddr != [4]byte{} || hasAgent) && r.config.PresentGiaddr == Discard:
		return m, AgentRefused
	}
	k := keyOf(m)
	a.client = r.clientOf(k, m, a.listener, a.source.ip)
	queue := r.queue(a.listener, a.source.ip)
	if d.isOthers(m, k, a.client, now) {
		return m, OtherReplica
	}
	if drop := missing(to); drop != None {
		return m, drop
	}
	slot, drop := queue.ask(m, a, now)
	if drop != None {
		return m, drop
	}
	o := origin{listener: a.listener, giaddr: giaddr, from: a.source, local: a.local, client: a.client}
	if a.listener == unicast {
		// The server has to answer this relay and not the one before it: only an answer that passes here again leaves from
		// the address that was asked.
		m.SetGiaddr([4]byte{})
	}
	m.Relayed(giaddrOf(to))
	m = d.addAgent(m, k, a, &o, hasAgent, to, now)
	m = dhcp.Pad(m)
	if a.waits = slot != nil; a.waits {
		queue.Keep(slot, waiting{key: k, origin: o}, m, now)
		return m, None
	}
	r.pending.Remember(k, o, now)
	return m, None
}

// own tells whether giaddr is an address by which clients or servers know this relay.
func (r *Relay) own(giaddr [4]byte, to *server.Targets) bool {
	if giaddr == giaddrOf(to) || r.config.SourceAddress == netip.AddrFrom4(giaddr) {
		return true
	}
	for _, l := range r.listeners {
		if p := l.Port(); p != nil && p.Info.address == giaddr {
			return true
		}
	}
	return false
}

// trusts tells whether a request with a giaddr is a trusted relay agent's. On a LAN a source is easily forged, and
// giaddr is where the server will send its answer: it has to be trusted too.
func (r *Relay) trusts(giaddr [4]byte, a *arrival) bool {
	return within(r.config.TrustedRelays, a.source.ip) &&
		(a.listener == unicast || within(r.config.TrustedRelays, giaddr))
}

// addAgent adds option 82 where there is one to add and the request's own, or another relay's, leaves room for it
// (RFC 3046 section 2.1.1: never to a request that has a giaddr, unless a mode says otherwise).
func (d *worker) addAgent(
	m dhcp.Message, k key, a *arrival, o *origin, has bool, to *server.Targets, now int64,
) dhcp.Message {
	config := &d.relay.config
	if config.PresentGiaddr == Replace && has {
		m, has = m.StripAgents(), false
	} else if config.PresentGiaddr == Forward && (has || o.giaddr != [4]byte{} && a.listener != unicast) {
		return m
	}
	value := d.scratch[:0]
	if a.listener == unicast {
		value = config.agentOfUnicast(value, o.giaddr)
	} else {
		value = append(value, a.agent...)
	}
	tokens := d.signer != nil
	if len(value) == 0 && !tokens {
		return m
	}
	o.added, o.sole, o.agent = true, !has, uint8(len(value))
	if tokens {
		o.agent += 2 + tokenLen
		value = d.signer.append(value, k, *o, d.relay.unix(now))
	}
	if has {
		o.sum = crc32.ChecksumIEEE(value)
	}
	added, ok := m.AppendAgent(value, min(to.MTU-ipAndUDP, m.MaxSize()))
	if !ok {
		o.added = false
		d.relay.metrics.Port(int(a.listener)).Own[omitted].Inc()
	}
	return added
}

// ipAndUDP is the length of the headers around a message.
const ipAndUDP = 20 + 8

func within(prefixes []netip.Prefix, ip [4]byte) bool {
	addr := netip.AddrFrom4(ip)
	return slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(addr) })
}

// isLast tells whether the last option 82 ends with the value that was added to the request.
func (o origin) isLast(m dhcp.Message) bool {
	agent, _ := m.LastAgent()
	at := len(agent) - int(o.agent)
	return at >= 0 && crc32.ChecksumIEEE(agent[at:]) == o.sum
}

// reply decides about a reply, and edits it in place for the client or the relay agent.
func (d *worker) reply(m dhcp.Message, from peer, to *server.Targets, now int64) (dhcp.Message, origin, Drop) {
	r := d.relay
	d.waited = 0
	if drop := ofMessage(m.Check()); drop != None {
		return m, origin{}, drop
	}
	if len(r.config.TrustedServers) > 0 && !within(r.config.TrustedServers, from.ip) {
		return m, origin{}, UntrustedServer
	}
	o, waited, first, found := r.pending.Match(keyOf(m), now)
	switch {
	case d.signer == nil:
	case found && o.added: // xid and chaddr can be guessed or overheard: where a token was sent it has to come back
		_, found = d.signer.read(m, r.unix(now), uint32(r.config.PendingExpiry.Seconds())+1)
	case !found:
		o, found = d.signer.read(m, r.unix(now), uint32(r.config.PendingExpiry.Seconds())+1)
		found = found && int(o.listener) < len(r.listeners) && o.listener >= unicast
	}
	if !found {
		r.unsolicited(now, from, m)
		return m, origin{}, Unsolicited
	}
	d.waited = waited
	if first {
		r.metrics.Answered(waited)
	}
	if o.client == 0 { // known by its token only
		o.client = r.clientOf(keyOf(m), m, o.listener, o.from.ip)
	}
	r.queue(o.listener, o.from.ip).answered(o.client, m, first, now)
	r.servers.Answered(netip.AddrFrom4(from.ip), to.All, now)
	m = dhcp.Pad(m)
	switch {
	case o.added && o.sole:
		// Again after padding, which may complete an option that was cut off.
		for m.HasAgent() {
			m = dhcp.Pad(m.StripAgents())
		}
	case o.added && o.isLast(m):
		m = m.StripAgent(int(o.agent))
	}
	switch {
	case o.listener == unicast:
		m.SetGiaddr(o.giaddr)
	case r.config.ClearGiaddr:
		m.SetGiaddr([4]byte{})
	}
	return dhcp.Pad(m), o, None
}
