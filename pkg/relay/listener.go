package relay

import (
	"net"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/pkg/dhcp"
	"github.com/tinkerbell/stack/pkg/frame"
	"github.com/tinkerbell/stack/pkg/relay/listener"
	"github.com/tinkerbell/stack/pkg/relay/server"
)

// vlan is the relay's side on a provisioning VLAN: it receives requests there, and replies leave there as raw frames.
type vlan struct {
	*worker
	*listener.Listener[link]
	index   int
	config  Listener
	arrival arrival
}

// link describes a listener's interface.
type link struct {
	// address is the interface's own, zero if it has none that other hosts can reach.
	address [4]byte
	// agent is the option 82 of requests from here.
	agent []byte
}

func newVLAN(r *Relay, index int, config Listener) (*vlan, error) {
	filter, err := frame.Filter(serverPort)
	if err != nil {
		return nil, err
	}
	l := &vlan{
		worker: newWorker(r, index, config.Name), index: index, config: config,
		arrival: arrival{
			listener: int16(index), trusted: slices.Contains(r.config.TrustedListeners, config.Name),
		},
	}
	l.Listener = listener.New(listener.Config[link]{
		Name: config.Name, Protocol: unix.ETH_P_IP, Filter: filter, Logger: r.logger,
		Describe: l.describe,
		Clock:    r.now,
		Handle:   l.requests,
		Changed:  func(open bool) { r.metrics.Up(config.Name, open) },
		Lost:     func(n uint32) { l.metrics.Drops(toServer, Overflow).Add(float64(n)) },
	})
	return l, nil
}

func (l *vlan) describe(at *net.Interface) (known link) {
	if address := server.FirstAddress(at, false); address.IsValid() {
		known.address = address.As4()
	}
	known.agent = l.relay.config.agentOf(l.config, frame.MAC(at.HardwareAddr), known.address)
	return known
}

// requests relays a batch that came at a time of the relay's clock.
func (l *vlan) requests(n int, now int64) {
	r, a := l.relay, &l.arrival
	targets, verbose := r.targets.Load(), r.verbose
	l.setClock(r, now)
	if p := l.Port(); p != nil {
		a.agent = p.Info.agent
	}
	for i := range n {
		m, drop := l.view(i, a, now)
		if drop == None {
			m, drop = l.request(m, a, targets, now)
		}
		if drop == OtherHost {
			m, a.giaddr = l.overheard(i), [4]byte{}
		}
		if !a.waits || drop != None {
			l.tellRequest(m, a, targets, now, drop)
		}
		if drop != None {
			l.metrics.Dropped(toServer, drop)
			if verbose {
				r.logger.Debug("dropped packet", "listener", l.name, "direction", toServer.String(),
					"source", a.source.String(), "reason", drop.String())
			}
			continue
		}
		if a.waits {
			continue // its queue sends it
		}
		l.metrics.Relayed(toServer, int(m.Type()))
		l.send(m, targets, now, server.Machine(a.client, a.firmware))
		if verbose {
			r.logMessage("relayed request", l.name, m)
		}
	}
	l.sender.Flush(targets)
}

// view finds the message in frame i, and puts its sender into a.
func (l *vlan) view(i int, a *arrival, now int64) (dhcp.Message, Drop) {
	b, sum, unheard := listener.Frame(l.RecvBatch(), i)
	switch unheard {
	case listener.OtherHost:
		return nil, OtherHost
	case listener.Truncated:
		return nil, Truncated
	case listener.OK:
	}
	l.relay.trace.Frame(now, b)
	datagram, fault := frame.Parse(b, sum)
	if fault != frame.OK {
		return nil, ofFrame(fault)
	}
	a.source = peerOf(datagram.Src)
	return dhcp.Message(datagram.Payload), None
}
