package relay

import (
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/pkg/dhcp"
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
	scratch [dhcp.MaxAgent + 64]byte
	signer  *signer
	watch   *group.Watch // of a listener: which requests are this replica's

	toServers *mmsg.SendBatch
	// detour is for servers that are reached from another source port; see health.
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

// send gives a request to every server. It stays where it is until flush. served tells that the servers have answered
// its client before.
func (d *worker) send(m dhcp.Message, to *targets, now int64, served bool) {
	answered := m.Giaddr() == to.giaddr && answerable(m.Type())
	for i := range to.all {
		t := &to.all[i]
		out := d.toServers
		if t.Detour != nil {
			out = d.detour
		}
		if out.Full() {
			d.flush(to)
		}
		out.AddUDP(m, t.Addr, netip.AddrFrom4(to.giaddr), 0)
		t.Server.Asked(now, answered, served)
		d.relay.trace.Payload(now, peer{ip: to.giaddr, port: serverPort}.addrPort(), t.Addr, m)
	}
}

func (d *worker) flush(to *targets) {
	server.Flush(d.toServers, d.relay.upstream.Socket, d.detour, to.all)
}
