package relay

import (
	"net"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/pkg/dhcp"
	"github.com/tinkerbell/stack/pkg/frame"
	"github.com/tinkerbell/stack/pkg/relay/admit"
	"github.com/tinkerbell/stack/pkg/relay/server"
	"github.com/tinkerbell/stack/pkg/relay/socket"
)

// worker has what one goroutine needs to handle packets: the sender to the servers, and scratch memory.
type worker struct {
	relay          *Relay
	counters       *counters // of what is sent to the servers
	name           string    // for the log
	arrival        arrival
	back           back
	options        [max(headroom6, dhcp.MaxOption82+64)]byte
	unicastOptions [dhcp.MaxOption82 + 64]byte
	signer         *signer

	sender *server.Sender
	teller
}

func newWorker(r *Relay, listener int) *worker {
	name := r.nameOf(int16(listener))
	w := &worker{relay: r, counters: r.metrics.of(listener), name: name, signer: newSigner(r.config.TokenKey)}
	if w.teller.emit = r.config.Event; r.verbose {
		w.teller.emit = r.logged
	}
	w.sender = server.NewSender(server.SenderConfig{
		Own: func() *socket.Socket { return r.upstream.Socket }, Port: r.serverPort, Trace: r.trace,
		Failed: func(errno unix.Errno) {
			w.counters.dropped(toServer, SendFailed)
			r.logLimiter.WarnAt(r.now(), "failed to send request", func() []any {
				return []any{"listener", name, "error", errno.Error()}
			})
		},
	})
	return w
}

// gate returns the gate of a listener, of the trusted relay agents' unicasts, or of all other unicasts: the requests of
// a pod do not hold back the machines behind a router.
func (r *Relay) gate(listener int16, sender netip.Addr) *admit.Gate {
	switch {
	case listener != unicast:
		return r.gates[listener]
	case r.agents != nil && within(r.config.TrustedRelays, sender):
		return r.agents
	default:
		return r.unicasts
	}
}

// admit decides whether there is room for a request.
func (w *worker) admit(a *arrival, asker admit.Asker, now int64) Drop {
	asker.Unicast = a.listener == unicast
	switch w.relay.gate(a.listener, a.source.addr()).Ask(&asker, now) {
	case admit.Client:
		return ClientLimit
	case admit.Total:
		return TotalLimit
	case admit.Newcomers:
		w.relay.logLimiter.WarnAt(now, "more new machines ask than the servers answer", func() []any {
			return []any{"listener", w.name,
				"remedy", "look for a flood, or servers that are down; machines that were served before are not held back"}
		})
		return NewcomerLimit
	default:
		return None
	}
}

// pass sends a client's request, and counts it.
func (w *worker) pass(b []byte, targets *server.Targets, now int64, kind int) {
	w.counters.relayed(toServer, kind)
	w.send(b, targets, now)
}

// send adds a client's request to the batch for every server. b must not change before w.sender.Flush.
func (w *worker) send(b []byte, targets *server.Targets, now int64) {
	w.sender.Send(targets, now, b, w.relay.family.answerExpected(w, b, targets))
}

// drop counts a packet that was not relayed.
func (w *worker) drop(side direction, from peer, reason Drop) {
	w.counters.dropped(side, reason)
	if w.relay.verbose {
		w.relay.logger.Debug("dropped packet", "listener", w.name, "direction", side.String(),
			"source", from.String(), "reason", reason.String())
	}
}

// missing tells which of the targets a request lacks, None where it can be relayed.
func (r *Relay) missing(targets *server.Targets) Drop {
	switch {
	case len(targets.All) == 0:
		return NoServer
	case !targets.Source.IsValid():
		return r.noSource
	}
	return None
}

// remember notes the origin of a request for its replies. Any station on a link of IPv6 sees a machine's message, and
// could have the answer's frame sent to itself by repeating that message. So the transaction belongs to its first
// sender until the answer comes. Another MAC address takes it over only if the peer address is made from that MAC
// address: then the first message was the copy.
func (w *worker) remember(k key, o origin, now int64) Drop {
	if o.unanswered {
		return None
	}
	if earlier, ok := w.relay.pending.RememberIf(k, o, now, supersedes); !ok {
		w.logTaken(&k, o.mac, earlier.mac, now)
		return TransactionTaken
	}
	return None
}

// logTaken logs that a message is a copy of another machine's.
func (w *worker) logTaken(k *key, mac, first frame.MAC, now int64) {
	peer := netip.AddrFrom16(k.sender)
	w.relay.logLimiter.WarnAt(now, "refused a copy of another machine's message", func() []any {
		return []any{"listener", w.name, "peer", peer.String(),
			"mac", net.HardwareAddr(mac[:]).String(), "first_mac", net.HardwareAddr(first[:]).String(),
			"remedy", "find the machine with that MAC address: it wants the answer to another one"}
	})
}

// supersedes tells whether a later message of the same transaction may take the place of the earlier one. Of DHCPv4
// there is no mac, and each may.
func supersedes(earlier, later origin) bool { return later.mac == earlier.mac || later.fromMAC }

// refuse logs that a server's message was dropped.
func (r *Relay) refuse(what string, m []byte, from netip.Addr, now int64, remedy string) {
	r.logLimiter.WarnAt(now, what, func() []any { return append(r.said(m, from), "remedy", remedy) })
}

// unsolicited notes a reply that matched nothing.
func (r *Relay) unsolicited(m []byte, from netip.Addr, now int64) Drop {
	r.servers.Unsolicited()
	r.logLimiter.WarnAt(now, "dropped a reply that nobody asked for", func() []any { return r.said(m, from) })
	return Unsolicited
}

// badToken notes a reply to a pending request with a token that is not that request's.
func (r *Relay) badToken(m []byte, from netip.Addr, now int64) Drop {
	r.refuse("dropped a reply with a wrong token", m, from, now,
		"somebody forges or repeats replies, or replicas have another TOKEN_KEY")
	return BadToken
}

// tokenMissing notes a reply to a pending request without that request's token.
func (r *Relay) tokenMissing(m []byte, from netip.Addr, targets *server.Targets, now int64, remedy string) Drop {
	r.servers.Heard(from, targets.All, now)
	r.refuse("dropped a reply without its token", m, from, now, remedy)
	return TokenMissing
}

// repeated notes that a reply was one too many.
func (r *Relay) repeated(m []byte, from netip.Addr, now int64) Drop {
	r.refuse("dropped repeated replies to one request", m, from, now,
		"find what repeats the server's packets, or who sends in its name")
	return ReplyLimit
}

func within(prefixes []netip.Prefix, ip netip.Addr) bool {
	return slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(ip) })
}
