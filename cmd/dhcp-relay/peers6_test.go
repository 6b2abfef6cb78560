package main

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv6"
	"github.com/mdlayher/packet"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/pkg/frame"
)

// TestReplicaOfTheOwnerRelaysIPv6: the stack's only address is an IPv6 one; its owner's replica relays DHCPv6, and when
// that is killed the other one relays a machine's first repetition.
func TestReplicaOfTheOwnerRelaysIPv6(t *testing.T) {
	s := newSite(t)
	podIP6s := [2]netip.Addr{podIP6, netip.MustParseAddr("2001:db8:244::20")}
	for i, l := range s.pods {
		l.pod.Addr(t, "eth0", podIP6s[i].String()+"/64")
	}
	first := &lab6{lab: s.pods[0]}
	first.server.Addr(t, "eth0", serverIP6.String()+"/64")
	first.server.Do(t, func() (err error) {
		first.smee6, err = net.ListenUDP("udp6", net.UDPAddrFromAddrPort(netip.AddrPortFrom(serverIP6, 547)))
		return err
	})
	t.Cleanup(func() { first.smee6.Close() })
	first.client.Do(t, func() error {
		link, err := net.InterfaceByName("lan0")
		if err != nil {
			return err
		}
		first.lan6, err = packet.Listen(link, packet.Raw, unix.ETH_P_IPV6, nil)
		return err
	})
	t.Cleanup(func() { first.lan6.Close() })
	owned := netip.MustParseAddr("2001:db8:1::2")
	address, err := netlink.ParseAddr(owned.String() + "/128")
	if err != nil {
		t.Fatal(err)
	}
	address.Flags = unix.IFA_F_NODAD
	if err := s.nodes[0].Links().AddrAdd(s.nodes[0].Link(t, "eth1"), address); err != nil {
		t.Fatal(err)
	}

	relays := s.start(t, "PEERS=owner", "OWNER_ADDRESS="+owned.String(), "DHCPV6_ENABLED=true",
		"DHCPV6_SERVERS="+serverIP6.String())
	relays[0].wantShare(t, "1")
	relays[1].wantShare(t, "0")
	ask := func(machine byte) *dhcpv6.Message {
		m, err := dhcpv6.NewSolicit(net.HardwareAddr{2, 0, 0, 0, 6, machine})
		if err != nil {
			t.Fatal(err)
		}
		first.ask(t, m.ToBytes())
		return m
	}
	for machine := range byte(20) {
		ask(machine)
		if _, from := receive(t, first.smee6); from.Addr() != podIP6s[0] {
			t.Fatalf("relayed by %v, want the first replica", from)
		}
	}
	silent(t, first.smee6)
	relays[1].wantMetric(t,
		`dhcp_relay6_drops_total{direction="to-server",listener="macvlan0",reason="other-replica"} 20`)

	_ = relays[0].Process.Kill()
	<-relays[0].done
	m := ask(77)
	time.Sleep(1100 * time.Millisecond)
	first.ask(t, m.ToBytes())
	b, from := receive(t, first.smee6)
	if from.Addr() != podIP6s[1] {
		t.Fatalf("relayed by %v, want the second replica", from)
	}
	if got := forwarded(t, b); got.PeerAddr.String() != netip.AddrFrom16(frame.LinkLocal(frame.MAC(clientMAC))).String() {
		t.Errorf("got peer %v", got.PeerAddr)
	}
}
