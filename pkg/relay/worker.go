package relay

import (
	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/pkg/dhcp"
	"github.com/tinkerbell/stack/pkg/relay/metrics"
	"github.com/tinkerbell/stack/pkg/relay/server"
	"github.com/tinkerbell/stack/pkg/relay/socket"
)

// worker has what one goroutine needs to handle packets: the sender to the servers, and scratch memory.
type worker struct {
	relay   *Relay
	metrics *metrics.Port[Drop] // of what is sent to the servers
	name    string              // for the log
	scratch [dhcp.MaxAgent + 64]byte
	unicast [dhcp.MaxAgent + 64]byte
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

// send gives a client's request to every server. It stays where it is until flush. machine is the tag of
// [server.Machine].
func (d *worker) send(m dhcp.Message, to *server.Targets, now int64, machine uint64) {
	kind := m.Type()
	d.sender.Send(to, now, server.Request{
		Message: m, Answered: m.Giaddr() == giaddrOf(to) && answerable(kind), Asks: asks(m, kind),
		Machine: machine, MAC: macOf(m),
		// A server answers the port that such a request came from, and the relay does not read what arrives at the
		// detour's.
		UsualPort: asksPort(m),
	})
}
