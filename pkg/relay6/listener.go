package relay6

import (
	"net"
	"net/netip"

	"github.com/insomniacslk/dhcp/dhcpv6"
	"github.com/insomniacslk/dhcp/iana"
	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/pkg/dhcp6"
	"github.com/tinkerbell/stack/pkg/frame"
	"github.com/tinkerbell/stack/pkg/relay/listener"
	"github.com/tinkerbell/stack/pkg/relay/server"
)

// vlan is the relay's side on a provisioning VLAN: it receives messages there, and replies leave there as raw frames.
type vlan struct {
	*worker
	*listener.Listener[link]
	index   int
	config  Listener
	routers routers
	opened  chan struct{} // the listener has opened
}

// link describes a listener's interface.
type link struct {
	// address is the link address that servers are told, zero where there is none.
	address [16]byte
	// local is the link-local address that replies come from.
	local [16]byte
	// options are those of each RELAY-FORW from here, besides the Interface-Id and the client's link-layer address.
	options []byte
}

// allNodes is the group of every station, for replies to a client whose MAC address is not known.
var allNodes = [16]byte{0xff, 2, 15: 1}

func newVLAN(r *Relay, index int, config Listener) (*vlan, error) {
	filter, err := frame.Filter6(serverPort)
	if err != nil {
		return nil, err
	}
	l := &vlan{worker: newWorker(r, index, config.Name), index: index, config: config, opened: make(chan struct{}, 1)}
	l.Listener = listener.New(listener.Config[link]{
		Name: config.Name, Protocol: unix.ETH_P_IPV6, Filter: filter, Front: front, Logger: r.logger,
		// An interface without IPv6 listens to neither by itself.
		Groups:   []frame.MAC{frame.GroupMAC(frame.AllRelays()), frame.GroupMAC(allNodes)},
		Describe: l.describe,
		Clock:    r.now,
		Handle:   l.requests,
		Changed: func(open bool) {
			r.metrics.Up(config.Name, open)
			if open {
				select {
				case l.opened <- struct{}{}:
				default: // report has not taken the last one yet
				}
			}
		},
		Lost: func(n uint32) { l.metrics.Drops(toServer, Overflow).Add(float64(n)) },
	})
	return l, nil
}

// describe finds the interface's addresses. It needs none: replies come from the link-local address made from its MAC
// address, and need no neighbour discovery, since they are sent as frames to the MAC address that asked.
func (l *vlan) describe(at *net.Interface) link {
	mac := frame.MAC(at.HardwareAddr)
	known := link{local: frame.LinkLocal(mac), options: l.relay.config.optionsOf(mac)}
	if l.config.LinkAddress.IsValid() {
		known.address = l.config.LinkAddress.As16()
	} else if own := server.FirstAddress(at, true); own.IsValid() {
		known.address = own.As16()
	}
	addresses, err := at.Addrs()
	if err != nil {
		return known
	}
	for _, each := range addresses {
		prefix, ok := each.(*net.IPNet)
		if address, valid := netip.AddrFromSlice(prefix.IP); ok && valid && address.Is6() && address.IsLinkLocalUnicast() {
			known.local = address.As16()
			break
		}
	}
	return known
}

// optionsOf are the options that messages from a listener with this MAC address get.
func (c *Config) optionsOf(mac frame.MAC) []byte {
	var options dhcpv6.Options
	for _, option := range c.Options {
		switch option {
		case RemoteID:
			id := []byte(c.RemoteID)
			if len(id) == 0 {
				id = mac[:]
			}
			options = append(options, &dhcpv6.OptRemoteID{EnterpriseNumber: c.Enterprise, RemoteID: id})
		case SubscriberID:
			options = append(options, &dhcpv6.OptionGeneric{
				OptionCode: dhcp6.OptionSubscriberID, OptionData: []byte(c.SubscriberID),
			})
		case RelayID:
			duid := c.RelayID
			if len(duid) == 0 {
				duid = (&dhcpv6.DUIDLL{HWType: iana.HWTypeEthernet, LinkLayerAddr: mac[:]}).ToBytes()
			}
			options = append(options, &dhcpv6.OptionGeneric{OptionCode: dhcp6.OptionRelayID, OptionData: duid})
		}
	}
	return options.ToBytes()
}

// requests relays a batch that came at a time of the relay's clock.
func (l *vlan) requests(n int, now int64) {
	r := l.relay
	targets, verbose := r.targets.Load(), r.verbose
	p := l.Port()
	if p == nil {
		return
	}
	l.setClock(r, now)
	a := arrival{listener: int16(l.index), link: &p.Info}
	for i := range n {
		m, drop := l.view(i, &a, now)
		if drop == None && m == nil {
			continue // a router advertisement
		}
		b := m
		if drop == None {
			b, drop = l.request(m, front+frame.HeaderLen6, &a, targets, now)
			l.unadvertised(&a, now)
			if !a.waits {
				l.tellRequest(m[front+frame.HeaderLen6:], &a, targets, now, drop)
			}
		}
		if drop != None {
			l.metrics.Dropped(toServer, drop)
			if verbose {
				r.logger.Debug("dropped packet", "listener", l.name, "direction", toServer.String(),
					"source", netip.AddrFrom16(a.source).String(), "reason", drop.String())
			}
			continue
		}
		if a.waits {
			continue // its queue sends it
		}
		l.metrics.Relayed(toServer, a.kind.Index())
		l.send(b, targets, now, server.Machine(a.client, a.firmware))
		if verbose {
			r.logMessage("relayed request", l.name, b)
		}
	}
	l.sender.Flush(targets)
}

// view finds the message in frame i, and puts its sender into a. It returns the slot up to the message's end, or nil
// for a router advertisement.
func (l *vlan) view(i int, a *arrival, now int64) ([]byte, Drop) {
	b, sum, unheard := listener.Frame(l.RecvBatch(), i)
	switch unheard {
	case listener.OtherHost:
		return nil, OtherHost
	case listener.Truncated:
		return nil, Truncated
	case listener.OK:
	}
	if said, ok := frame.ParseAdvertisement(b); ok {
		l.routers.note(said, now)
		return nil, None
	}
	l.relay.trace.Frame(now, b)
	datagram, fault := frame.Parse6(b, sum)
	if fault != frame.OK {
		return nil, ofFrame(fault)
	}
	a.source, a.port, a.mac = datagram.Src.Addr().As16(), datagram.Src.Port(), datagram.SrcMAC
	return l.RecvBatch().Slot(i)[:front+frame.HeaderLen6+len(datagram.Payload)], None
}
