package relay6

import (
	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/pkg/dhcp6"
	"github.com/tinkerbell/stack/pkg/relay/metrics"
	"github.com/tinkerbell/stack/pkg/relay/server"
	"github.com/tinkerbell/stack/pkg/relay/socket"
)

// worker has what one goroutine needs to handle packets: the sender to the servers, and scratch memory.
type worker struct {
	relay   *Relay
	metrics *metrics.Port[Drop] // of what is sent to the servers
	name    string              // for the log
	scratch [front]byte
	signer  *signer

	sender *server.Sender
	teller
}

func newWorker(r *Relay, listener int, name string) *worker {
	d := &worker{relay: r, metrics: r.metrics.Port(listener), name: name, signer: newSigner(r.config.TokenKey)}
	d.tell = r.config.Event
	d.sender = server.NewSender(server.SenderConfig{
		Own: func() *socket.Socket { return r.upstream.Socket }, Port: serverPort,
		Trace: r.trace,
		Failed: func(errno unix.Errno) {
			d.metrics.Dropped(toServer, SendFailed)
			r.logLimiter.WarnAt(r.now(), "failed to send request", func() []any {
				return []any{"listener", name, "error", errno.Error()}
			})
		},
	})
	return d
}

// send gives a client's message to every server. It stays where it is until flush.
// machine is the tag of [server.Machine].
func (d *worker) send(b []byte, to *server.Targets, now int64, machine uint64) {
	m, around := dhcp6.Message(b).Innermost()
	mac, _ := around.ClientLinkAddr()
	d.sender.Send(to, now, server.Request{
		Message: b, Answered: d.answered(m), Asks: asks(m), Machine: machine, MAC: mac,
		// A server answers the port that a message with the Relay Source Port option came from (RFC 8357 section 5.2), and
		// the relay does not read what arrives at the detour's port.
		UsualPort: dhcp6.Message(b).HasRelayPort(),
	})
}

// isFirmware tells a message of a machine's firmware, or of a boot loader, which names its architecture (RFC 5970
// section 3.3).
func isFirmware(m dhcp6.Message) bool {
	_, found := m.Option(dhcp6.OptionClientArch)
	return found
}

// asks tells which servers answer a message: those that know its client. Of those that are asked to extend a lease only
// the one that has it does.
func asks(m dhcp6.Message) server.Answer {
	switch m.Type() {
	case dhcp6.Solicit:
		return server.Offered
	case dhcp6.Renew, dhcp6.Rebind:
		return server.Granted
	default:
		return server.Other
	}
}

// answered tells whether every server answers a client's message. One that names a server, such as every RENEW, is
// discarded by the others (RFC 9915 sections 16.4, 16.6, 16.8, 16.9), which does not mean that they are dead.
func (d *worker) answered(m dhcp6.Message) bool {
	if len(d.relay.config.Servers) == 1 {
		return true
	}
	_, named := m.Option(dhcp6.OptionServerID)
	return !named
}
