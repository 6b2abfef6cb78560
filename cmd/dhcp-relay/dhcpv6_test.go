package main

import (
	"net"
	"net/netip"
	"testing"

	"github.com/insomniacslk/dhcp/dhcpv6"
	"github.com/insomniacslk/dhcp/iana"
	"github.com/mdlayher/packet"
	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/pkg/frame"
)

// The same LAN, pod and server by IPv6.
var (
	podIP6     = netip.MustParseAddr("2001:db8:244::10")
	serverIP6  = netip.MustParseAddr("2001:db8:244::11")
	clientIP6  = netip.MustParseAddr("2001:db8:1::50")
	linkIP6    = netip.MustParseAddr("2001:db8:1::1")
	clientFE80 = netip.AddrFrom16(frame.LinkLocal(frame.MAC(clientMAC)))
)

// lab6 is a lab with a DHCPv6 server, and a client's packet socket.
type lab6 struct {
	*lab
	lan6  *packet.Conn
	smee6 *net.UDPConn
}

func newLab6(t *testing.T) *lab6 {
	t.Helper()
	l := &lab6{lab: newLab(t)}
	l.pod.Addr(t, "eth0", podIP6.String()+"/64")
	l.server.Addr(t, "eth0", serverIP6.String()+"/64")
	l.lan6 = rawSocket(t, l.client, "lan0", unix.ETH_P_IPV6)
	l.server.Do(t, func() (err error) {
		l.smee6, err = net.ListenUDP("udp6", net.UDPAddrFromAddrPort(netip.AddrPortFrom(serverIP6, 547)))
		return err
	})
	t.Cleanup(func() { l.smee6.Close() })
	return l
}

// start6 runs the relay with DHCPv6 on.
func (l *lab6) start6(t *testing.T, env ...string) *process {
	t.Helper()
	return l.start(t, append([]string{"DHCPV6_ENABLED=true", "DHCPV6_SERVERS=" + serverIP6.String()}, env...)...)
}

// ask sends a message of the client to all relay agents.
func (l *lab6) ask(t *testing.T, payload []byte) { t.Helper(); l.askFrom(t, payload, clientFE80, 546) }

func (l *lab6) askFrom(t *testing.T, payload []byte, source netip.Addr, port uint16) {
	t.Helper()
	b := append(make([]byte, frame.HeaderLen6), payload...)
	group := frame.AllRelays()
	header := frame.Header6{
		SrcMAC: frame.MAC(clientMAC), DstMAC: frame.GroupMAC(group), Src: source.As16(), Dst: group,
		SrcPort: port, DstPort: 547,
	}
	header.Put(b)
	l.put(t, b)
}

// put sends a frame on the LAN.
func (l *lab6) put(t *testing.T, b []byte) {
	t.Helper()
	if _, err := l.lan6.WriteTo(b, &packet.Addr{HardwareAddr: b[:6]}); err != nil {
		t.Fatal(err)
	}
}

// hear6 is the next datagram to a client's or relay agent's port on the LAN.
func (l *lab6) hear6(t *testing.T, port uint16) frame.Datagram {
	t.Helper()
	deadline(t, l.lan6)
	b := make([]byte, 4096)
	for {
		n, _, err := l.lan6.ReadFrom(b)
		if err != nil {
			t.Fatalf("heard nothing: %v", err)
		}
		if datagram, fault := frame.Parse6(b[:n], frame.Verify); fault == frame.OK && datagram.Dst.Port() == port {
			return datagram
		}
	}
}

// solicit is a machine's first message.
func solicit(t *testing.T, modifiers ...dhcpv6.Modifier) *dhcpv6.Message {
	t.Helper()
	m, err := dhcpv6.NewSolicit(clientMAC, modifiers...)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// forwarded reads a RELAY-FORW.
func forwarded(t *testing.T, b []byte) *dhcpv6.RelayMessage {
	t.Helper()
	m, err := dhcpv6.RelayMessageFromBytes(b)
	if err != nil {
		t.Fatalf("got %x: %v", b, err)
	}
	return m
}

// advertise answers what a relay has wrapped, as a server does.
func advertise(t *testing.T, m *dhcpv6.RelayMessage, modifiers ...dhcpv6.Modifier) []byte {
	t.Helper()
	inner, err := m.GetInnerMessage()
	if err != nil {
		t.Fatal(err)
	}
	answer, err := dhcpv6.NewAdvertiseFromSolicit(inner, append([]dhcpv6.Modifier{
		dhcpv6.WithServerID(&dhcpv6.DUIDLL{HWType: iana.HWTypeEthernet, LinkLayerAddr: clientMAC}),
		dhcpv6.WithIANA(dhcpv6.OptIAAddress{IPv6Addr: clientIP6.AsSlice(), ValidLifetime: 3600e9, PreferredLifetime: 3600e9}),
	}, modifiers...)...)
	if err != nil {
		t.Fatal(err)
	}
	reply, err := dhcpv6.NewRelayReplFromRelayForw(m, answer)
	if err != nil {
		t.Fatal(err)
	}
	return reply.ToBytes()
}

// TestAdvertiseReachesTheClient is the relay's main job for DHCPv6: the machine's bytes are unchanged inside of a
// RELAY-FORW that names its link, its MAC address and the interface, and the answer arrives unchanged, too.
func TestAdvertiseReachesTheClient(t *testing.T) {
	t.Parallel()
	l := newLab6(t)
	p := l.start6(t, "DHCPV6_LINK_ADDRESSES=macvlan0="+linkIP6.String())
	p.waitReady(t)

	sent := solicit(t).ToBytes()
	l.ask(t, sent)
	got, from := receive(t, l.smee6)
	if want := netip.AddrPortFrom(podIP6, 547); from != want {
		t.Errorf("got source %v, want %v", from, want)
	}
	m := forwarded(t, got)
	_, mac := m.Options.ClientLinkLayerAddress()
	if m.MessageType != dhcpv6.MessageTypeRelayForward || m.HopCount != 0 ||
		!m.LinkAddr.Equal(linkIP6.AsSlice()) || !m.PeerAddr.Equal(clientFE80.AsSlice()) ||
		string(m.Options.InterfaceID()) != "macvlan0" || mac.String() != clientMAC.String() {
		t.Errorf("got %s", m.LongString(0))
	}
	if inner := m.Options.RelayMessage().ToBytes(); string(inner) != string(sent) {
		t.Errorf("the message changed: got %x, want %x", inner, sent)
	}

	reply := advertise(t, m)
	send(t, l.smee6, reply, from)
	heard := l.hear6(t, 546)
	if heard.DstMAC != [6]byte(clientMAC) || heard.Dst != netip.AddrPortFrom(clientFE80, 546) ||
		heard.Src.Port() != 547 || !heard.Src.Addr().IsLinkLocalUnicast() {
		t.Errorf("got %v -> %v %x", heard.Src, heard.Dst, heard.DstMAC)
	}
	if want := forwarded(t, reply).Options.RelayMessage().ToBytes(); string(heard.Payload) != string(want) {
		t.Errorf("the answer changed: got %x, want %x", heard.Payload, want)
	}
	p.wantMetric(t, `dhcp_relay6_packets_total{direction="to-server",listener="macvlan0",type="solicit"} 1`)
	p.wantMetric(t, `dhcp_relay6_packets_total{direction="to-client",listener="macvlan0",type="advertise"} 1`)
	p.wantMetric(t, `dhcp_relay6_reply_seconds_count 1`)
}
