package relay

import (
	"net"
	"slices"

	"github.com/tinkerbell/stack/pkg/frame"
	"github.com/tinkerbell/stack/pkg/relay/listener"
)

// vlan is the relay's side on a provisioning VLAN: it receives requests there, and replies leave there as raw frames.
type vlan struct {
	*worker
	*listener.Listener[link]
	config  *Listener
	trusted bool          // to bring option 82
	routers routers       // of DHCPv6
	opened  chan struct{} // the listener has opened
}

func newVLAN(r *Relay, index int) (*vlan, error) {
	filter, err := r.filter(r.serverPort)
	if err != nil {
		return nil, err
	}
	config := &r.config.Listeners[index]
	l := &vlan{
		worker: newWorker(r, index), config: config, opened: make(chan struct{}, 1),
		trusted: slices.Contains(r.config.TrustedListeners, config.Name),
	}
	l.arrival = arrival{listener: int16(index), trusted: l.trusted}
	l.Listener = listener.New(listener.Config[link]{
		Name: config.Name, Protocol: r.etherType, Filter: filter, Groups: r.groups, Front: r.listenerFront,
		Logger:   r.logger,
		Describe: func(at *net.Interface) link { return r.family.describe(&r.config, config, at) },
		Clock:    r.now,
		Handle:   l.requests,
		Changed: func(open bool) {
			r.metrics.open(config.Name, open)
			if open {
				select {
				case l.opened <- struct{}{}:
				default: // nobody has taken the last one
				}
			}
		},
		Lost: func(n uint32) { l.counters.drops[toServer][Overflow].Add(float64(n)) },
	})
	return l, nil
}

// requests relays a batch that came at a time of the relay's clock.
func (l *vlan) requests(n int, now int64) {
	r, a, p := l.relay, &l.worker.arrival, l.Port()
	if p == nil {
		return
	}
	targets := r.targets.Load()
	a.link = &p.Info
	for i := range n {
		ok, drop := l.view(i, a, now)
		if !ok {
			continue
		}
		var b []byte
		a.waits = false
		if drop == None {
			b, drop = r.family.request(l.worker, a, targets, now)
			r.family.countUnadvertised(l, a, now)
		}
		if !a.waits { // else its queue sends it, and makes the event
			l.tellRequest(a, targets, now, drop)
		}
		switch {
		case drop != None:
			l.drop(toServer, a.source, drop)
		case !a.waits:
			l.pass(b, targets, now, a.client, a.firmware, a.kind)
		}
	}
	l.sender.Flush(targets)
}

// view finds the message in frame i, and puts it and its sender into a; drop says why there is none. ok is false for a
// frame that is no message and is not counted, as a router's advertisement.
func (l *vlan) view(i int, a *arrival, now int64) (ok bool, drop Drop) {
	a.b, a.giaddr, a.source = nil, [4]byte{}, peer{}
	b, sum, unheard := listener.Frame(l.RecvBatch(), i)
	switch unheard {
	case listener.OtherHost:
		// It is reported, since it may explain why a machine gets no answer: its messages carry the tag of another VLAN.
		if l.teller.emit != nil && !l.relay.config.IPv6 {
			if datagram, fault := frame.Parse(b, frame.Trust); fault == frame.OK {
				a.b, a.at, a.source = datagram.Payload, 0, peerOf(datagram.Src)
			}
		}
		return true, OtherHost
	case listener.Truncated:
		return true, Truncated
	case listener.OK:
	}
	return l.relay.family.view(l, i, b, sum, a, now)
}
