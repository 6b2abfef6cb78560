package link

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"

	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/link/channel"
	"gvisor.dev/gvisor/pkg/tcpip/link/ethernet"
	"gvisor.dev/gvisor/pkg/tcpip/network/arp"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/icmp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"

	"github.com/tinkerbell/stack/pkg/frame"
)

// Station is a TCP/IP stack of its own on a link, with one address, as the machine would have it: the kernel of this
// host knows nothing of it.
type Station struct {
	addr  netip.Addr
	stack *stack.Stack
	ep    *channel.Endpoint
	untap func()
	stop  context.CancelFunc
	wg    sync.WaitGroup
}

const (
	nic = 1
	// queued is how many frames wait to be sent.
	queued = 256
)

// Station answers for an address and talks from it until Close. The gateway may be the zero address.
func (l *Link) Station(addr netip.Prefix, gateway netip.Addr) (*Station, error) {
	ep := channel.New(queued, uint32(l.MTU+frame.EthernetLen), tcpip.LinkAddress(l.MAC[:]))
	// Where a sender on this host leaves sums unfinished, they are not there to look at.
	ep.LinkEPCapabilities |= stack.CapabilityRXChecksumOffload
	s := stack.New(stack.Options{
		NetworkProtocols:   []stack.NetworkProtocolFactory{arp.NewProtocol, ipv4.NewProtocol},
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol, udp.NewProtocol, icmp.NewProtocol4},
	})
	st := &Station{addr: addr.Addr(), stack: s, ep: ep}
	if err := s.CreateNIC(nic, ethernet.New(ep)); err != nil {
		return nil, fmt.Errorf("failed to make a station on %s: %s", l.Name, err)
	}
	own := tcpip.ProtocolAddress{
		Protocol:          ipv4.ProtocolNumber,
		AddressWithPrefix: tcpip.AddressWithPrefix{Address: address(st.addr), PrefixLen: addr.Bits()},
	}
	if err := s.AddProtocolAddress(nic, own, stack.AddressProperties{}); err != nil {
		return nil, fmt.Errorf("failed to make a station with %s: %s", addr, err)
	}
	routes := []tcpip.Route{{Destination: own.AddressWithPrefix.Subnet(), NIC: nic}}
	if gateway.IsValid() {
		routes = append(routes, tcpip.Route{Destination: header.IPv4EmptySubnet, Gateway: address(gateway), NIC: nic})
	}
	s.SetRouteTable(routes)
	ctx, stop := context.WithCancel(context.Background())
	st.stop = stop
	st.wg.Go(func() { st.send(ctx, l) })
	st.untap = l.Tap(func(in Received) {
		if in.VLAN != 0 {
			return
		}
		packet := stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: buffer.MakeWithData(in.Frame)})
		ep.InjectInbound(0, packet)
		packet.DecRef()
	})
	return st, nil
}

// send brings frames to the link.
func (s *Station) send(ctx context.Context, l *Link) {
	for {
		packet := s.ep.ReadContext(ctx)
		if packet == nil {
			return
		}
		view := packet.ToView()
		_ = l.Send(view.AsSlice()) // what is lost is sent again, or missed
		view.Release()
		packet.DecRef()
	}
}

// Close ends all connections, and waits until nothing of the station runs any more.
func (s *Station) Close() {
	s.stack.Close() // connections are reset
	s.untap()
	s.stop()
	s.wg.Wait()
	s.ep.Close()
	s.stack.Wait()
}

// Neighbour has an address belong to a station: of several that answer for it, always the same.
func (s *Station) Neighbour(addr netip.Addr, mac frame.MAC) {
	// Without the entry it asks for itself.
	_ = s.stack.AddStaticNeighbor(nic, ipv4.ProtocolNumber, address(addr), tcpip.LinkAddress(mac[:]))
}

// DialContext connects by TCP to an address with port, or makes a socket for UDP.
func (s *Station) DialContext(ctx context.Context, network, to string) (net.Conn, error) {
	peer, err := netip.ParseAddrPort(to)
	if err != nil {
		return nil, fmt.Errorf("failed to connect to %s: names are not looked up: %w", to, err)
	}
	if !peer.Addr().Is4() {
		return nil, fmt.Errorf("failed to connect to %s: the offered address is of IPv4", to)
	}
	remote := full(peer)
	if network == "tcp" {
		conn, err := gonet.DialContextTCP(ctx, s.stack, remote, ipv4.ProtocolNumber)
		if err != nil {
			return nil, fmt.Errorf("failed to connect to %s: %w", to, err)
		}
		return conn, nil
	}
	conn, err := gonet.DialUDP(s.stack, nil, &remote, ipv4.ProtocolNumber)
	if err != nil {
		return nil, fmt.Errorf("failed to open a socket for %s: %w", to, err)
	}
	return conn, nil
}

// ListenPacket opens a socket that hears everybody.
func (s *Station) ListenPacket() (net.PacketConn, error) {
	local := full(netip.AddrPortFrom(s.addr, 0))
	conn, err := gonet.DialUDP(s.stack, &local, nil, ipv4.ProtocolNumber)
	if err != nil {
		return nil, errors.Join(errors.New("failed to open a socket"), err)
	}
	return conn, nil
}

func full(to netip.AddrPort) tcpip.FullAddress {
	return tcpip.FullAddress{NIC: nic, Addr: address(to.Addr()), Port: to.Port()}
}

func address(a netip.Addr) tcpip.Address { return tcpip.AddrFromSlice(a.AsSlice()) }
