package relay

import (
	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/pkg/dhcp"
)

// desk is where one goroutine works on packets: its way to the servers and its scratch memory.
type desk struct {
	relay   *Relay
	metrics *portMetrics // of what is sent to the servers
	name    string       // for the log
	scratch [dhcp.MaxAgent + 64]byte
	signer  *signer

	toServers *outbox
	// detour is for servers that are reached from another source port; see health.
	detour *outbox

	teller
}

func newDesk(r *Relay, listener int, name string) *desk {
	d := &desk{relay: r, metrics: r.metrics.port(listener), name: name, signer: newSigner(r.config.TokenKey)}
	d.tell = r.config.Event
	failed := func(errno unix.Errno) {
		d.metrics.dropped(toServer, SendFailed)
		r.notices.warn(r.now(), "failed to send request", func() []any {
			return []any{"listener", name, "error", errno.Error()}
		})
	}
	d.toServers, d.detour = newOutbox(r.config.Segments, failed), newOutbox(r.config.Segments, failed)
	return d
}

// send gives a request to every server. It stays where it is until flush. served tells that the servers have answered
// its client before.
func (d *desk) send(m dhcp.Message, to *routes, now int64, served bool) {
	answered := m.Giaddr() == to.giaddr && answerable(m.Type())
	for i := range to.targets {
		t := &to.targets[i]
		out := d.toServers
		if t.detour != nil {
			out = d.detour
		}
		if out.full() {
			d.flush(to)
		}
		out.addUDP(m, t.peer, to.giaddr)
		t.server.asked(now, answered, served)
		d.relay.trace.record(now, sentToServer, peer{ip: to.giaddr, port: serverPort}, t.peer, m)
	}
}

// answerable tells whether servers answer a request of this type: none does a RELEASE or a DECLINE (RFC 2131 section
// 4.3, 4.4.4).
func answerable(t dhcp.Type) bool { return t != dhcp.Release && t != dhcp.Decline }

func (d *desk) flush(to *routes) {
	d.toServers.flush(d.relay.upstream.socket)
	if d.detour.packets == 0 {
		return
	}
	for i := range to.targets {
		if s := to.targets[i].detour; s != nil {
			d.detour.flush(s) // all detours are the same socket
			return
		}
	}
}
