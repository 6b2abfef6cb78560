package relay

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/tinkerbell/stack/pkg/dhcp"
	"github.com/tinkerbell/stack/pkg/relay/listener"
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

	// The method request sets these: client is the sender's tag, firmware tells that it says that it boots by the
	// network, and waits that its queue will send the request.
	client          uint64
	firmware, waits bool
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
	m = dhcp.Pad(m) // before what is there is judged: padding may complete an option 82 that was cut off
	giaddr, hasAgent := a.giaddr, m.HasAgent()
	switch {
	case giaddr != [4]byte{} && r.own(giaddr, to):
		return m, Loop
	case giaddr != [4]byte{} && !isHost(giaddr):
		return m, BadGiaddr
	case giaddr != [4]byte{} && !r.trusts(giaddr, a):
		r.logLimiter.WarnAt(now, "refused a relay agent", func() []any {
			return []any{"giaddr", dhcp.Addr(giaddr), "source", a.source.String(),
				"remedy", "name its prefix in TRUSTED_RELAYS"}
		})
		return m, UntrustedRelay
	case giaddr == [4]byte{} && hasAgent && !a.trusted &&
		(a.listener != unicast || !within(r.config.TrustedRelays, a.source.ip)): // on a LAN a source is easily forged
		r.refusedSwitch(m, a, now)
		return m, UntrustedAgent
	case (giaddr != [4]byte{} || hasAgent) && r.config.PresentGiaddr == Discard:
		return m, AgentRefused
	}
	k := keyOf(m)
	a.client, a.firmware = r.clientOf(k, m, a.listener, a.source.ip), isFirmware(m)
	queue := r.queue(a.listener, a.source.ip)
	if drop := missing(to); drop != None {
		return m, drop
	}
	slot, drop := queue.ask(m, a, now)
	if drop != None {
		return m, drop
	}
	o := origin{
		listener: a.listener, giaddr: giaddr, from: a.source, local: a.local, client: a.client, firmware: a.firmware,
	}
	replaced := a.listener == unicast && giaddr != [4]byte{}
	if replaced {
		o.from = answerTo(m, giaddr, a.source)
	}
	m, linked := d.addAgent(m, k, a, &o, hasAgent, to, now)
	if replaced && linked {
		// The server has to answer this relay and not the one before it: only an answer that passes here again leaves from
		// the address that was asked.
		m.SetGiaddr([4]byte{})
	} else if replaced {
		// Without the giaddr the server would not know the machine's link. It answers the other relay agent itself.
		if !within(r.config.TrustedRelays, giaddr) {
			if slot != nil {
				queue.Cancel(slot)
			}
			return m, UntrustedRelay
		}
		r.logLimiter.WarnAt(now, "no room for a relay agent's address", func() []any {
			return []any{"giaddr", dhcp.Addr(giaddr), "source", a.source.String(), "length", len(m), "remedy",
				"the server answers that relay agent past this relay; have it add a shorter option 82, or raise the MTU"}
		})
	}
	m.Relayed(giaddrOf(to))
	m = dhcp.Pad(m)
	if m.OtherCookie() {
		r.metrics.Port(int(a.listener)).Own[otherCookies].Inc()
	}
	if a.waits = slot != nil; a.waits {
		queue.Keep(slot, waiting{key: k, origin: o}, m, now)
		return m, None
	}
	r.remember(m, k, o, now)
	return m, None
}

// remember remembers a request for its replies, if servers send any.
func (r *Relay) remember(m dhcp.Message, k key, o origin, now int64) {
	if answerable(m.Type()) {
		r.pending.Remember(k, o, now)
	}
}

// refusedSwitch logs that an option 82 was refused.
func (r *Relay) refusedSwitch(m dhcp.Message, a *arrival, now int64) {
	r.logLimiter.WarnAt(now, "refused option 82 without a giaddr", func() []any {
		chaddr, name, remote := m.Chaddr(), unicastLabel, []byte(nil)
		if a.listener != unicast {
			name = r.config.Listeners[a.listener].Name
		}
		for agent := range m.Agents {
			if value, found := dhcp.Sub(agent, dhcp.SubRemoteID); found {
				remote = value
			}
		}
		return []any{"listener", name, "chaddr", net.HardwareAddr(chaddr[:min(m.HLen(), 16)]).String(),
			"giaddr", "0.0.0.0", "remote_id", hex.EncodeToString(remote), "remedy",
			"if a switch adds it (DHCP snooping), name the listener in TRUSTED_LISTENERS, or turn it off at the switch " +
				"(Cisco: no ip dhcp snooping information option)"}
	})
}

// answerTo is where the answer to a relay agent goes: to port 67 of giaddr (RFC 2131 section 4.1), unless it asks for
// its own port by option 82 (RFC 8357 section 5.1), or an address on the way was translated.
func answerTo(m dhcp.Message, giaddr [4]byte, source peer) peer {
	if source.ip != giaddr || source.port == serverPort || asksPort(m) {
		return source
	}
	return peer{ip: giaddr, port: serverPort}
}

// asksPort tells whether option 82 asks to be answered at the port that the request comes from (RFC 8357 section 5.1).
func asksPort(m dhcp.Message) bool {
	for agent := range m.Agents {
		if _, found := dhcp.Sub(agent, dhcp.SubSourcePort); found {
			return true
		}
	}
	return false
}

// isFirmware tells a message of a machine's firmware, or of a boot loader, which says so by its vendor class.
func isFirmware(m dhcp.Message) bool {
	class, _ := m.Option(dhcp.OptionVendorClass)
	return bytes.HasPrefix(class, []byte("PXEClient")) || bytes.HasPrefix(class, []byte("HTTPClient"))
}

// own tells whether giaddr is an address by which clients or servers know this relay.
func (r *Relay) own(giaddr [4]byte, to *server.Targets) bool {
	if giaddr == giaddrOf(to) || r.config.SourceAddress == netip.AddrFrom4(giaddr) {
		return true
	}
	for _, l := range r.listeners {
		if p := l.Port(); p != nil && p.Info.address == giaddr || l.config.LinkAddress == netip.AddrFrom4(giaddr) {
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

// addAgent adds option 82 where there is one to add and the request's own, or another relay's, leaves room for it (RFC
// 3046 section 2.1.1: never to a request that has a giaddr, unless a mode says otherwise). linked is false where the
// giaddr of a unicast is not in it: without that the giaddr must not be replaced.
func (d *worker) addAgent(
	m dhcp.Message, k key, a *arrival, o *origin, has bool, to *server.Targets, now int64,
) (added dhcp.Message, linked bool) {
	config := &d.relay.config
	if config.PresentGiaddr == Replace && has {
		m, has = m.StripAgents(), false
	}
	if config.PresentGiaddr == Forward && a.listener != unicast && a.giaddr != [4]byte{} {
		return m, false
	}
	// Where this relay is the one that giaddr names, what tells the server the link is added even if the action is to
	// leave option 82 alone: the server cannot know it otherwise.
	which := everything
	if config.PresentGiaddr == Forward && has {
		which = ofRelaying
	}
	limit := min(to.MTU-ipAndUDP, m.MaxSize())
	added, linked, ok := d.join(m, k, a, o, has, which, limit, now)
	if !ok && a.listener == unicast && a.giaddr != [4]byte{} {
		added, linked, ok = d.join(m, k, a, o, has, linkAlone, limit, now)
	}
	if !ok {
		d.relay.metrics.Port(int(a.listener)).Own[omitted].Inc()
	}
	return added, linked
}

// which sub-options are added.
type which uint8

const (
	everything which = iota
	ofRelaying       // what comes of this relay being the one that the server answers: link, override and token
	linkAlone
)

// adds tells whether a sub-option is among them, in a request of a client or of another relay agent.
func (w which) adds(code byte, ofAgent bool) bool {
	switch {
	case w == everything || code == dhcp.SubLinkSelection:
		return true
	case w == linkAlone || ofAgent:
		return false
	}
	return code == dhcp.SubServerIDOverride || code == dhcp.SubFlags
}

// join is addAgent with some sub-options. linked tells that there is a link selection then. ok is false where they do
// not fit.
func (d *worker) join(
	m dhcp.Message, k key, a *arrival, o *origin, has bool, which which, limit int, now int64,
) (added dhcp.Message, linked, ok bool) {
	var theirs dhcp.Subs
	if has {
		m, theirs = nearer(m)
		has = m.HasAgent()
	}
	value, ours := d.scratch[:0], d.subsOf(m, k, a)
	if theirs == 0 && which == everything {
		value = append(value, ours...)
	} else {
		for code, sub, rest, ok := dhcp.NextSub(ours); ok; code, sub, rest, ok = dhcp.NextSub(rest) {
			if !theirs.Has(code) && which.adds(code, a.giaddr != [4]byte{}) {
				value = dhcp.AppendSub(value, code, sub)
			}
		}
	}
	added, linked = m, theirs.Has(dhcp.SubLinkSelection)
	signs := d.signer != nil && which != linkAlone
	if len(value) == 0 && !signs {
		return added, linked, true
	}
	subs, _ := dhcp.SumSubs(value)
	linked = linked || subs.Has(dhcp.SubLinkSelection)
	o.added, o.sole = subs, !has
	if signs {
		o.added |= dhcp.SetOf(dhcp.SubVendor)
		value = d.signer.append(value, k, *o, d.relay.unix(now))
	}
	if !has {
		added, ok = m.AppendAgent(value, limit)
	} else if added, ok = m.JoinAgent(value, limit); ok {
		_, o.sum = dhcp.SumSubs(value)
	}
	if !ok {
		o.added, o.sole = 0, false
		return m, theirs.Has(dhcp.SubLinkSelection), false
	}
	return added, linked, true
}

// nearer returns which sub-options an agent nearer to the client has set and this relay does not set again: the link,
// and the server's address. A link that no host can be on is removed.
func nearer(m dhcp.Message) (_ dhcp.Message, theirs dhcp.Subs) {
	for nowhere(m) {
		m = m.StripSubs(dhcp.SetOf(dhcp.SubLinkSelection), 0) // one of each option 82
	}
	for agent := range m.Agents {
		for _, code := range [...]byte{dhcp.SubLinkSelection, dhcp.SubServerIDOverride} {
			if _, found := dhcp.Sub(agent, code); found {
				theirs |= dhcp.SetOf(code)
			}
		}
	}
	return m, theirs
}

// nowhere tells whether a link selection is of a link that no host can be on.
func nowhere(m dhcp.Message) bool {
	for agent := range m.Agents {
		if link, found := dhcp.Sub(agent, dhcp.SubLinkSelection); found && (len(link) != 4 || !isHost([4]byte(link))) {
			return true
		}
	}
	return false
}

// subsOf are the sub-options for a request.
func (d *worker) subsOf(m dhcp.Message, k key, a *arrival) []byte {
	r := d.relay
	if a.listener != unicast {
		return a.agent
	}
	value := d.unicast[:0]
	if a.giaddr != [4]byte{} {
		value = append(value, r.ofRouters...)
		return dhcp.AppendSub(value, dhcp.SubLinkSelection, a.giaddr[:])
	}
	asked := a.local
	if asked == giaddrOf(r.targets.Load()) { // the address of a Service may have been translated to it
		asked = [4]byte{}
	}
	base := r.ofStrangers
	if home := r.home(m, k); home != nil {
		base = home.Info.agent
	}
	return r.config.appendUnicast(value, base, m.Ciaddr(), asked)
}

// home is the port of the listener that a client was served on, nil where that is not known. Where no router is trusted
// there are no clients but those of the listeners.
func (r *Relay) home(m dhcp.Message, k key) *listener.Port[link] {
	for i, l := range r.listeners {
		if len(r.listeners) == 1 && len(r.config.TrustedRelays) == 0 ||
			r.queue(int16(i), [4]byte{}).Knows(r.clientOf(k, m, int16(i), [4]byte{})) {
			return l.Port()
		}
	}
	return nil
}

// ipAndUDP is the length of the headers around a message.
const ipAndUDP = 20 + 8

func within(prefixes []netip.Prefix, ip [4]byte) bool {
	addr := netip.AddrFrom4(ip)
	return slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(addr) })
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
	k, sender := keyOf(m), uint8(binary.BigEndian.Uint32(from.ip[:])*2654435761>>24)
	var o origin
	var waited int64
	var first, found, within bool
	if d.signer == nil {
		o, waited, first, found, within = r.pending.MatchReply(k, sender, now)
	} else {
		var drop Drop
		if o, waited, first, found, drop = d.vouched(m, k, from, to, now); drop != None {
			return m, origin{}, drop
		}
		within = found && r.pending.Reply(k, sender)
	}
	switch {
	case !found:
		r.unsolicited(now, from, m)
		return m, origin{}, Unsolicited
	case !within:
		r.repeated(from, m, now)
		return m, origin{}, ReplyLimit
	}
	d.waited = waited
	if first {
		r.metrics.Answered(waited)
	}
	r.queue(o.listener, o.from.ip).answered(o.client, m, first, now)
	r.servers.Answered(netip.AddrFrom4(from.ip), to.All, now, server.Machine(o.client, o.firmware), gives(m))
	m = dhcp.Pad(m)
	switch {
	case o.added != 0 && o.sole:
		// Again after padding, which may complete an option that was cut off.
		for m.HasAgent() {
			m = dhcp.Pad(m.StripAgents())
		}
	case o.added != 0:
		m = m.StripSubs(o.added, o.sum)
	}
	switch {
	case o.listener == unicast:
		m.SetGiaddr(o.giaddr)
	case r.config.ClearGiaddr:
		m.SetGiaddr([4]byte{})
	}
	if ciaddr, yiaddr := m.Ciaddr(), m.Yiaddr(); o.listener != unicast && !(isHost(ciaddr) && isHost(yiaddr)) {
		if to := address(m, r.config.AlwaysBroadcast); to.ip != limitedBroadcast && !isHost(to.ip) {
			return m, o, BadAddress
		}
	}
	return dhcp.Pad(m), o, None
}

// vouched is the request that a reply answers, where there is a key: xid and chaddr can be guessed or overheard, so the
// token that was sent has to come back, and a token tells of a request that is not known here.
func (d *worker) vouched(
	m dhcp.Message, k key, from peer, to *server.Targets, now int64,
) (o origin, waited int64, first, found bool, drop Drop) {
	r := d.relay
	o, waited, first, found = r.pending.Match(k, now)
	if found && !o.added.Has(dhcp.SubVendor) {
		return o, waited, first, true, None
	}
	signed, ok := d.signer.read(m, r.unix(now), uint32(r.config.PendingExpiry.Seconds())+1)
	switch {
	case found && !ok:
		return o, 0, false, false, r.refusedToken(m, from, to, now)
	case found:
		return o, waited, first, true, None
	case !ok || int(signed.listener) >= len(r.listeners) || signed.listener < unicast:
		return o, 0, false, false, None
	}
	signed.client = r.clientOf(k, m, signed.listener, signed.from.ip)
	r.pending.Remember(k, signed, now) // so that its replies are counted, too
	r.pending.Match(k, now)
	return signed, 0, false, true, None
}

// refusedToken decides about a reply to a pending request without the request's token.
func (r *Relay) refusedToken(m dhcp.Message, from peer, to *server.Targets, now int64) Drop {
	if _, found := find(m); found {
		r.logLimiter.WarnAt(now, "dropped a reply with a wrong token", func() []any {
			return append(saidBy(m, from), "remedy", "somebody forges or repeats replies, or replicas have another TOKEN_KEY")
		})
		return BadToken
	}
	r.servers.Heard(netip.AddrFrom4(from.ip), to.All, now)
	r.logLimiter.WarnAt(now, "dropped a reply without its token", func() []any {
		return append(saidBy(m, from), "remedy", "this server does not echo option 82 (RFC 3046 section 2.2), as busybox "+
			"udhcpd: take another server, or leave TOKEN_KEY unset")
	})
	return TokenMissing
}

// repeated logs that a reply was one too many.
func (r *Relay) repeated(from peer, m dhcp.Message, now int64) {
	r.logLimiter.WarnAt(now, "dropped repeated replies to one request", func() []any {
		return append(saidBy(m, from), "remedy", "find what repeats the server's packets, or who sends in its name")
	})
}

// saidBy describes a reply for the log.
func saidBy(m dhcp.Message, from peer) []any {
	chaddr := m.Chaddr()
	return []any{"source", from.String(), "type", m.Type().String(), "xid", fmt.Sprintf("%08x", m.XID()),
		"chaddr", net.HardwareAddr(chaddr[:min(m.HLen(), 16)]).String()}
}
