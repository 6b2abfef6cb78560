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
	config   *Listener     // its settings
	trusted  bool          // to bring option 82
	openings chan struct{} // the listener has opened
}

func newVLAN(r *Relay, index int) (*vlan, error) {
	filter, err := r.filter(r.serverPort)
	if err != nil {
		return nil, err
	}
	config := &r.config.Listeners[index]
	v := &vlan{
		worker: newWorker(r, index), config: config, openings: make(chan struct{}, 1),
		trusted: slices.Contains(r.config.TrustedListeners, config.Name),
	}
	v.arrival = arrival{listener: int16(index), trusted: v.trusted}
	v.Listener = listener.New(listener.Config[link]{
		Name: config.Name, Protocol: r.etherType, Filter: filter, Groups: r.groups, Headroom: r.listenerHeadroom,
		Logger:   r.logger,
		Describe: func(at *net.Interface) link { return r.family.describe(&r.config, config, at) },
		Clock:    r.now,
		Handle:   v.requests,
		Changed: func(open bool) {
			r.metrics.open(config.Name, open)
			if open {
				select {
				case v.openings <- struct{}{}:
				default: // nobody has taken the last one
				}
			}
		},
		Lost: func(n uint32) { v.counters.drops[toServer][Overflow].Add(float64(n)) },
	})
	return v, nil
}

// requests relays a batch that came at a time of the relay's clock.
func (v *vlan) requests(n int, now int64) {
	r, a, open := v.relay, &v.worker.arrival, v.Opened()
	if open == nil {
		return
	}
	targets := r.targets.Load()
	a.link = &open.Info
	for i := range n {
		drop := v.view(i, a, now)
		var b []byte
		if drop == None {
			b, drop = r.family.request(v.worker, a, targets, now)
		}
		v.tellRequest(a, targets, now, drop)
		if drop != None {
			v.drop(toServer, a.source, drop)
		} else {
			v.pass(b, targets, now, a.kind)
		}
	}
	v.sender.Flush()
}

// view finds the message in frame i, and puts it and its sender into a; drop says why there is none.
func (v *vlan) view(i int, a *arrival, now int64) Drop {
	a.b, a.giaddr, a.source = nil, [4]byte{}, peer{} // tellRequest reads these of a dropped frame, too
	b, sum, fault := listener.Frame(v.RecvBatch(), i)
	switch fault {
	case listener.OtherHost:
		// It is reported, since it may explain why a machine gets no answer: its messages carry the tag of another VLAN.
		if v.teller.emit != nil && !v.relay.config.IPv6 {
			if datagram, fault := frame.Parse(b, frame.Trust); fault == frame.OK {
				a.b, a.at, a.source = datagram.Payload, 0, peerOf(datagram.Src)
			}
		}
		return OtherHost
	case listener.Truncated:
		return Truncated
	case listener.OK:
	}
	return v.relay.family.view(v, i, b, sum, a, now)
}
