package relay

import (
	"encoding/binary"
	"encoding/hex"
	"net"
	"net/netip"

	"github.com/tinkerbell/stack/pkg/dhcp"
	"github.com/tinkerbell/stack/pkg/relay/admit"
	"github.com/tinkerbell/stack/pkg/relay/server"
)

// request4 decides about a request, and edits it in place for the servers. There must be room behind it for padding and
// option 82.
func (w *worker) request4(m dhcp.Message, a *arrival, targets *server.Targets, now int64) (dhcp.Message, Drop) {
	r := w.relay
	if drop := ofMessage4[m.Check()]; drop != None {
		return m, drop
	}
	a.giaddr, a.kind = m.Giaddr(), int(m.Type())
	if m.Op() != dhcp.OpRequest {
		return m, ReplyFromClient
	}
	if int(m.Hops()) >= r.config.MaxHops {
		return m, HopLimit
	}
	m = dhcp.Pad(m) // before what is there is judged: padding may complete an option 82 that was cut off
	giaddr, has82 := a.giaddr, m.HasOption82()
	switch {
	case giaddr != [4]byte{} && r.own4(giaddr, targets):
		return m, Loop
	case giaddr != [4]byte{} && !isHost(giaddr):
		return m, BadGiaddr
	case giaddr != [4]byte{} && !r.trusts(giaddr, a):
		r.logLimiter.WarnAt(now, "refused a relay agent", func() []any {
			return []any{"giaddr", dhcp.Addr(giaddr), "source", a.source.String(),
				"remedy", "name its prefix in TRUSTED_RELAYS"}
		})
		return m, UntrustedRelay
	case giaddr == [4]byte{} && (has82 || m.HidesOption82()) && !r.mayBring82(a):
		r.logRefusedSwitch(m, a, now)
		return m, UntrustedAgent
	}
	k := keyOf(m)
	a.client = r.clientOf(&k, m, a.listener, a.source.ip)
	if drop := r.missing(targets); drop != None {
		return m, drop
	}
	asker := admit.Asker{Tag: a.client, XID: k.xid, IsRequest: m.Type() == dhcp.Request}
	if drop := w.admit(a, asker, now); drop != None {
		return m, drop
	}
	o := origin{
		listener: a.listener, local: a.local, client: a.client,
		unanswered: !answerable(m.Type()), origin4: origin4{giaddr: giaddr, from: a.source},
	}
	ofAgent := a.listener == unicast && giaddr != [4]byte{} // another relay agent's unicast
	if ofAgent {
		o.from = answerTo(m, giaddr, a.source)
	}
	m, linked := w.addOption82(m, &k, a, &o, has82, targets, now)
	if ofAgent && linked {
		// The server has to answer this relay and not the one before it: only an answer that passes here again leaves from
		// the address that was asked.
		m.SetGiaddr([4]byte{})
	} else if ofAgent {
		// Without the giaddr the server would not know the machine's link. It answers the other relay agent itself, past
		// this relay: the address has to be that of a trusted one.
		if !within(r.config.TrustedRelays, netip.AddrFrom4(giaddr)) {
			return m, UntrustedRelay
		}
		r.logLimiter.WarnAt(now, "no room for a relay agent's address", func() []any {
			return []any{"giaddr", dhcp.Addr(giaddr), "source", a.source.String(), "length", len(m), "remedy",
				"the server answers that relay agent past this relay; have it add a shorter option 82, or raise the MTU"}
		})
	}
	m.StampRelay(ownGiaddr(targets))
	m = dhcp.Pad(m)
	return m, w.remember(k, o, now)
}

// logRefusedSwitch logs that an option 82 was refused.
func (r *Relay) logRefusedSwitch(m dhcp.Message, a *arrival, now int64) {
	r.logLimiter.WarnAt(now, "refused option 82 without a giaddr", func() []any {
		chaddr, remote := m.Chaddr(), []byte(nil)
		for option82 := range m.Options82 {
			if value, found := dhcp.Sub(option82, dhcp.SubRemoteID); found {
				remote = value
			}
		}
		return []any{"listener", r.nameOf(a.listener), "chaddr", net.HardwareAddr(chaddr[:min(m.HLen(), 16)]).String(),
			"giaddr", "0.0.0.0", "remote_id", hex.EncodeToString(remote), "remedy",
			"if a switch adds it (DHCP snooping), name the listener in TRUSTED_LISTENERS, or turn it off at the switch " +
				"(Cisco: no ip dhcp snooping information option)"}
	})
}

// answerTo is where the answer to a relay agent goes: to port 67 of giaddr (RFC 2131 section 4.1), unless it asks for
// its own port by option 82 (RFC 8357 section 5.1), or an address on the way was translated.
func answerTo(m dhcp.Message, giaddr [4]byte, source peer) peer {
	if source.ip != wide(giaddr) || source.port == serverPort || asksPort(m) {
		return source
	}
	return peer{ip: wide(giaddr), port: serverPort}
}

// asksPort tells whether option 82 asks to be answered at the port that the request comes from (RFC 8357 section 5.1).
func asksPort(m dhcp.Message) bool {
	for option82 := range m.Options82 {
		if _, found := dhcp.Sub(option82, dhcp.SubSourcePort); found {
			return true
		}
	}
	return false
}

// own4 tells whether giaddr is an address by which clients or servers know this relay.
func (r *Relay) own4(giaddr [4]byte, targets *server.Targets) bool {
	if giaddr == ownGiaddr(targets) || r.config.SourceAddress == netip.AddrFrom4(giaddr) {
		return true
	}
	for _, v := range r.vlans {
		open := v.Opened()
		if open != nil && open.Info.address == wide(giaddr) || v.config.LinkAddress == netip.AddrFrom4(giaddr) {
			return true
		}
	}
	return false
}

// trusts tells whether a request with a giaddr is a trusted relay agent's. On a LAN a source is easily forged, and
// giaddr is where the server will send its answer: it has to be trusted too.
func (r *Relay) trusts(giaddr [4]byte, a *arrival) bool {
	return within(r.config.TrustedRelays, a.source.addr()) &&
		(a.listener == unicast || within(r.config.TrustedRelays, netip.AddrFrom4(giaddr)))
}

// mayBring82 tells whether a request without a giaddr may have an option 82: on a trusted listener, where a switch adds
// it, or in the unicast of a trusted relay agent. On a LAN a source is easily forged.
func (r *Relay) mayBring82(a *arrival) bool {
	return a.trusted || a.listener == unicast && within(r.config.TrustedRelays, a.source.addr())
}

// addOption82 adds our option 82 if we have one to add and it fits (RFC 3046 section 2.1.1: never on a listener to a
// request that has a giaddr), and notes the added sub-options in o. linked: the server can tell the link without the
// giaddr. Where it cannot, the caller must leave the giaddr of a unicast.
func (w *worker) addOption82(
	m dhcp.Message, k *key, a *arrival, o *origin, has82 bool, targets *server.Targets, now int64,
) (added dhcp.Message, linked bool) {
	if a.listener != unicast && a.giaddr != [4]byte{} {
		return m, false
	}
	limit := min(targets.MTU-ipAndUDP, m.MaxSize())
	j := w.join(m, k, a, o, has82, w.signer != nil, limit, now)
	if !j.fits && a.giaddr != [4]byte{} {
		j = w.join(m, k, a, o, has82, false, limit, now) // its link alone
	}
	if !j.fits {
		w.relay.metrics.of(int(a.listener)).omitted.Inc()
	}
	return j.message, j.linked
}

// joined is a request with our sub-options, or without them where they do not fit.
type joined struct {
	message dhcp.Message
	linked  bool // it has a link selection, ours or another agent's
	fits    bool
}

// join is addOption82 with a token, or without it.
func (w *worker) join(
	m dhcp.Message, k *key, a *arrival, o *origin, has82, signs bool, limit int, now int64,
) joined {
	var linked bool
	if has82 {
		m, linked = withLink(m)
		has82 = m.HasOption82()
	}
	value := w.oursBeside(has82, linked, m, a)
	without := joined{message: m, linked: linked}
	if len(value) == 0 && !signs {
		without.fits = true
		return without
	}
	subs, _ := dhcp.SumSubs(value)
	noted := *o // which the token says, too
	noted.added, noted.sole = subs, !has82
	if signs {
		noted.added |= dhcp.SetOf(dhcp.SubVendor)
		value = w.signer.append4(value, k, &noted, w.relay.unix(now))
	}
	with := joined{linked: linked || subs.Has(dhcp.SubLinkSelection)}
	if !has82 {
		with.message, with.fits = m.AppendOption82(value, limit)
	} else if with.message, with.fits = m.JoinOption82(value, limit); with.fits {
		_, noted.sum = dhcp.SumSubs(value) // now with the token
	}
	if !with.fits {
		return without
	}
	*o = noted
	return with
}

// oursBeside are the sub-options that are added: beside those of an agent nearer to the client the link alone, where
// that agent has set none. The server cannot know the link of a request that gets this relay's giaddr otherwise.
func (w *worker) oursBeside(has82, linked bool, m dhcp.Message, a *arrival) []byte {
	value, ours := w.options[:0], w.subsOf(m, a)
	if !has82 && !linked {
		return append(value, ours...)
	}
	if link, found := dhcp.Sub(ours, dhcp.SubLinkSelection); found && !linked {
		value = dhcp.AppendSub(value, dhcp.SubLinkSelection, link)
	}
	return value
}

// withLink removes link selections of links that no host can be on, and reports whether an agent nearer to the client
// has set another one.
func withLink(m dhcp.Message) (_ dhcp.Message, linked bool) {
	for nowhere(m) {
		m = m.StripSubs(dhcp.SetOf(dhcp.SubLinkSelection)) // one of each option 82
	}
	for option82 := range m.Options82 {
		if _, found := dhcp.Sub(option82, dhcp.SubLinkSelection); found {
			linked = true
		}
	}
	return m, linked
}

// nowhere tells whether a link selection is of a link that no host can be on.
func nowhere(m dhcp.Message) bool {
	for option82 := range m.Options82 {
		if link, found := dhcp.Sub(option82, dhcp.SubLinkSelection); found && (len(link) != 4 || !isHost([4]byte(link))) {
			return true
		}
	}
	return false
}

// subsOf are the sub-options for a request. That of a unicast has its link alone: the router's, or, where a client has
// an address, that one (any address of the link will do, RFC 3527 section 3).
func (w *worker) subsOf(m dhcp.Message, a *arrival) []byte {
	if a.listener != unicast {
		return a.link.options
	}
	link := a.giaddr
	if link == [4]byte{} && w.relay.config.adds(LinkSelection) {
		link = m.Ciaddr()
	}
	if !isHost(link) {
		return nil
	}
	return dhcp.AppendSub(w.unicastOptions[:0], dhcp.SubLinkSelection, link[:])
}

// reply4 decides about a reply, and edits it in place for the client or the relay agent. It notes in out whose it is.
func (w *worker) reply4(
	m dhcp.Message, from netip.Addr, targets *server.Targets, now int64, out *back,
) (dhcp.Message, Drop) {
	r := w.relay
	out.origin, out.waited, out.found = origin{}, 0, false
	if drop := ofMessage4[m.Check()]; drop != None {
		return m, drop
	}
	if len(r.config.TrustedServers) > 0 && !within(r.config.TrustedServers, from) {
		return m, UntrustedServer
	}
	k, ip := keyOf(m), from.As4()
	if w.signer != nil {
		if drop := w.vouch4(m, &k, from, targets, now); drop != None {
			return m, drop
		}
	}
	// The table counts a request's replies, in all and of each server, for which it has eight bits: a multiplicative
	// hash.
	serverHash := uint8((binary.BigEndian.Uint32(ip[:]) * 2654435761) >> 24)
	o, waited, first, found, withinBounds := r.pending.MatchReply(k, serverHash, now)
	switch {
	case !found:
		return m, r.unsolicited(m, from, now)
	case !withinBounds:
		return m, r.repeated(m, from, now)
	}
	out.origin, out.waited, out.found = o, waited, true
	if first {
		r.metrics.answered(waited)
	}
	r.gate(o.listener, o.from.addr()).Answered(o.client, gives(m), first, now)
	r.servers.Heard(from, targets.All, now)
	m = dhcp.Pad(m)
	switch {
	case o.added != 0 && o.sole:
		// Again after padding, which may complete an option that was cut off.
		for m.HasOption82() {
			m = dhcp.Pad(m.StripOption82())
		}
	case o.sum != 0:
		m = m.StripSubsOfSum(o.added, o.sum)
	case o.added != 0: // as the token says, which has no checksum of them
		m = m.StripSubs(o.added)
	}
	switch {
	case o.listener == unicast:
		m.SetGiaddr(o.giaddr)
	case r.config.ClearGiaddr:
		m.SetGiaddr([4]byte{})
	}
	if ciaddr, yiaddr := m.Ciaddr(), m.Yiaddr(); o.listener != unicast && !(isHost(ciaddr) && isHost(yiaddr)) {
		if at := address(m, r.config.AlwaysBroadcast); at.ip != limitedBroadcast && !isHost(at.ip) {
			return m, BadAddress
		}
	}
	return dhcp.Pad(m), None
}

// signed reports whether a token was sent with the request.
func (o *origin) signed() bool { return o.added.Has(dhcp.SubVendor) }

// vouch4 decides about a reply where there is a key: xid and chaddr can be guessed or overheard, so the token that was
// sent has to come back. From a token a request that is not known here is learned, and remembered.
func (w *worker) vouch4(m dhcp.Message, k *key, from netip.Addr, targets *server.Targets, now int64) Drop {
	r := w.relay
	o, found := r.pending.Peek(*k, now)
	if found && !o.signed() {
		return None
	}
	learned, ok := w.signer.read4(m, r.unix(now), r.config.maxAge())
	switch {
	case found && !ok:
		if _, has := findToken(m); has {
			return r.badToken(m, from, now)
		}
		return r.tokenMissing(m, from, targets, now, "this server does not echo option 82 (RFC 3046 section 2.2), as "+
			"busybox udhcpd: take another server, or leave TOKEN_KEY unset")
	case found || !ok || int(learned.listener) >= len(r.vlans) || learned.listener < unicast:
		return None
	}
	learned.client = r.clientOf(k, m, learned.listener, learned.from.ip)
	// Its replies are to be counted, too, but none as its first: it is not known when it was asked.
	r.pending.RememberAnswered(*k, learned, now)
	return None
}
