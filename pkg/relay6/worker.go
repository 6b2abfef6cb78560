package relay6

import (
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/pkg/dhcp6"
	"github.com/tinkerbell/stack/pkg/mmsg"
	"github.com/tinkerbell/stack/pkg/relay/group"
	"github.com/tinkerbell/stack/pkg/relay/metrics"
	"github.com/tinkerbell/stack/pkg/relay/server"
)

// worker is what one goroutine handles packets with: the batches to the servers and its scratch memory.
type worker struct {
	relay   *Relay
	metrics *metrics.Port[Drop] // of what is sent to the servers
	name    string              // for the log
	scratch [front]byte
	signer  *signer
	watch   *group.Watch // of a listener: which messages are this replica's

	toServers *mmsg.SendBatch
	// detour is for servers that are reached from another source port.
	detour *mmsg.SendBatch

	teller
}

func newWorker(r *Relay, listener int, name string) *worker {
	d := &worker{relay: r, metrics: r.metrics.Port(listener), name: name, signer: newSigner(r.config.TokenKey)}
	d.tell = r.config.Event
	failed := func(errno unix.Errno) {
		d.metrics.Dropped(toServer, SendFailed)
		r.logLimiter.WarnAt(r.now(), "failed to send request", func() []any {
			return []any{"listener", name, "error", errno.Error()}
		})
	}
	d.toServers, d.detour = mmsg.NewSendBatch(r.config.Segments, failed), mmsg.NewSendBatch(r.config.Segments, failed)
	return d
}

// send gives a message to every server. It stays where it is until flush. served tells that the servers have answered
// its client before.
func (d *worker) send(b []byte, to *server.Targets, now int64, served bool) {
	answered := d.answered(b)
	for i := range to.All {
		t := &to.All[i]
		out := d.toServers
		// A server answers the port that a message with the Relay Source Port option came from (RFC 8357 section 5.2),
		// and nothing reads at the detour's.
		if t.Detour != nil && !dhcp6.Message(b).HasRelayPort() {
			out = d.detour
		}
		if out.Full() {
			d.flush(to)
		}
		out.AddUDP(b, t.Addr, to.Source, 0)
		t.Server.Asked(now, answered, served)
		d.relay.trace.Payload(now, netip.AddrPortFrom(to.Source, serverPort), t.Addr, b)
	}
}

// answered tells whether every server that gets a relay message answers it. All but one of several discard what names
// that one (RFC 8415 sections 16.4, 16.6, 16.8, 16.9), such as every RENEW, and are none the less alive.
func (d *worker) answered(m dhcp6.Message) bool {
	if len(d.relay.config.Servers) == 1 {
		return true
	}
	client, _ := m.Innermost()
	_, named := client.Option(dhcp6.OptionServerID)
	return !named
}

func (d *worker) flush(to *server.Targets) {
	server.Flush(d.toServers, d.relay.upstream.Socket, d.detour, to.All)
}
