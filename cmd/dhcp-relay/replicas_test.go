package main

import (
	"net"
	"net/netip"
	"os/exec"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/dhcpv6"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/internal/nstest"
	"github.com/tinkerbell/stack/pkg/frame"
)

// site is two nodes on one provisioning VLAN, each with a pod whose listener is a macvlan on the node's interface, as
// broadcast-init makes it. Behind them is a server that gives each machine an address.
type site struct {
	nodes [2]*nstest.NS
	pods  [2]*lab // they share client, server and the socket on the LAN
	asked *tally
}

var podIPs = [2]netip.Addr{podIP, netip.MustParseAddr("10.244.0.20")}

// tally is what a server was asked, by giaddr and hardware address.
type tally struct {
	mu       sync.Mutex
	requests map[netip.Addr]map[string]int
}

func (c *tally) add(giaddr netip.Addr, mac string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.requests[giaddr] == nil {
		c.requests[giaddr] = map[string]int{}
	}
	c.requests[giaddr][mac]++
}

// of is how many requests of a machine each pod has relayed.
func (c *tally) of(mac string) (by [2]int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, pod := range podIPs {
		by[i] = c.requests[pod][mac]
	}
	return by
}

func newSite(t *testing.T) *site {
	t.Helper()
	s := &site{asked: &tally{requests: map[netip.Addr]map[string]int{}}}
	lan, cluster := nstest.New(t), nstest.New(t)
	bridge := func(ns *nstest.NS, ports ...string) {
		br := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br0"}}
		if err := ns.Links().LinkAdd(br); err != nil {
			t.Fatal(err)
		}
		for _, port := range ports {
			if err := ns.Links().LinkSetMaster(ns.Link(t, port), br); err != nil {
				t.Fatal(err)
			}
		}
		if err := ns.Links().LinkSetUp(br); err != nil {
			t.Fatal(err)
		}
	}
	first := &lab{client: nstest.New(t), server: nstest.New(t)}
	nstest.Veth(t, lan, "client", first.client, "lan0")
	nstest.Veth(t, cluster, "server", first.server, "eth0")
	first.server.Addr(t, "eth0", serverIP.String()+"/24")
	for i := range s.nodes {
		s.nodes[i] = nstest.New(t)
		name := []string{"a", "b"}[i]
		l := &lab{client: first.client, server: first.server, pod: nstest.New(t)}
		nstest.Veth(t, lan, name, s.nodes[i], "eth1")
		nstest.Veth(t, cluster, name, l.pod, "eth0")
		l.pod.Addr(t, "eth0", podIPs[i].String()+"/24")
		listener := &netlink.Macvlan{
			LinkAttrs: netlink.LinkAttrs{
				Name: "macvlan0", ParentIndex: s.nodes[i].Link(t, "eth1").Attrs().Index, Namespace: netlink.NsFd(l.pod.Fd()),
			},
			Mode: netlink.MACVLAN_MODE_BRIDGE,
		}
		if err := s.nodes[i].Links().LinkAdd(listener); err != nil {
			t.Fatalf("failed to make macvlan: %v", err)
		}
		if err := l.pod.Links().LinkSetUp(l.pod.Link(t, "macvlan0")); err != nil {
			t.Fatal(err)
		}
		s.pods[i] = l
	}
	bridge(lan, "client", "a", "b")
	bridge(cluster, "server", "a", "b")
	first.lan = rawSocket(t, first.client, "lan0", unix.ETH_P_IP)
	smee := first.listen(t, first.server, netip.AddrPortFrom(serverIP, 67))
	for _, l := range s.pods {
		l.lan, l.smee = first.lan, smee
	}
	go s.serve(smee)
	return s
}

// serve is the server: it ends when its socket is closed.
func (s *site) serve(conn *net.UDPConn) {
	b := make([]byte, 2048)
	for {
		n, from, err := conn.ReadFromUDPAddrPort(b)
		if err != nil {
			return
		}
		request, err := dhcpv4.FromBytes(b[:n])
		if err != nil {
			continue
		}
		giaddr, _ := netip.AddrFromSlice(request.GatewayIPAddr.To4())
		s.asked.add(giaddr, request.ClientHWAddr.String())
		kind := dhcpv4.MessageTypeOffer
		if request.MessageType() == dhcpv4.MessageTypeRequest {
			kind = dhcpv4.MessageTypeAck
		}
		reply, err := dhcpv4.NewReplyFromRequest(request, dhcpv4.WithMessageType(kind),
			dhcpv4.WithServerIP(serverIP.AsSlice()), dhcpv4.WithYourIP(clientIP.AsSlice()),
			dhcpv4.WithOption(dhcpv4.OptServerIdentifier(serviceIP.AsSlice())),
			dhcpv4.WithLeaseTime(3600), dhcpv4.WithNetmask(net.CIDRMask(24, 32)))
		if err == nil {
			_, _ = conn.WriteToUDPAddrPort(reply.ToBytes(), from)
		}
	}
}

// start runs a relay in each pod.
func (s *site) start(t *testing.T, env ...string) (relays [2]*process) {
	t.Helper()
	env = append([]string{"SOURCE_ADDRESS=" + serviceIP.String()}, env...)
	for i, l := range s.pods {
		relays[i] = l.start(t, env...)
	}
	for _, p := range relays {
		p.waitReady(t)
	}
	return relays
}

// hardware is a machine's address.
func hardware(n int) net.HardwareAddr { return net.HardwareAddr{2, 0, 0, 0, 1, byte(n)} }

// discover broadcasts a DISCOVER of a machine.
func (s *site) discover(t *testing.T, n int) (mac string) {
	t.Helper()
	hw := hardware(n)
	m, err := dhcpv4.NewDiscovery(hw, dhcpv4.WithBroadcast(false))
	if err != nil {
		t.Fatal(err)
	}
	s.pods[0].broadcast(t, m.ToBytes())
	return hw.String()
}

// TestReplicasAllRelay: two relays on one VLAN both relay a machine, which hears two OFFERs that differ in giaddr alone.
func TestReplicasAllRelay(t *testing.T) {
	for name, env := range map[string][]string{
		"without a key":      nil,
		"with one key":       {"TOKEN_KEY=0123456789abcdef"},
		"without the giaddr": {"CLEAR_GIADDR=true"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			s.start(t, env...)
			mac := s.discover(t, 1)
			var offers [2]frame.Datagram
			for i := range offers {
				offers[i] = s.pods[0].hear(t)
			}
			if offers[0].Src != offers[1].Src || offers[0].Dst != offers[1].Dst || offers[0].DstMAC != offers[1].DstMAC {
				t.Errorf("got OFFERs from %v to %v and from %v to %v", offers[0].Src, offers[0].Dst, offers[1].Src, offers[1].Dst)
			}
			for i := range offers {
				clear(offers[i].Payload[24:28]) // giaddr
			}
			if diff := cmp.Diff(offers[0].Payload, offers[1].Payload); diff != "" {
				t.Errorf("the OFFERs differ: %s", diff)
			}
			s.pods[0].quiet(t)
			if by := s.asked.of(mac); by != [2]int{1, 1} {
				t.Errorf("the server heard %v, want one DISCOVER of each relay", by)
			}
		})
	}
}

// TestKilledReplicaCostsNoRetransmission: whichever relay is killed between a machine's DISCOVER and its REQUEST, each of
// its messages is answered the first time.
func TestKilledReplicaCostsNoRetransmission(t *testing.T) {
	for _, victim := range []int{0, 1} {
		t.Run(strconv.Itoa(victim), func(t *testing.T) {
			s := newSite(t)
			relays := s.start(t)
			for n := range 20 {
				discover, err := dhcpv4.NewDiscovery(hardware(n), dhcpv4.WithBroadcast(false))
				if err != nil {
					t.Fatal(err)
				}
				s.pods[0].broadcast(t, discover.ToBytes())
				if n == 10 {
					_ = relays[victim].Process.Kill()
				}
				offer := s.answer(t, discover, dhcpv4.MessageTypeOffer)
				request, err := dhcpv4.NewRequestFromOffer(offer)
				if err != nil {
					t.Fatal(err)
				}
				s.pods[0].broadcast(t, request.ToBytes())
				s.answer(t, request, dhcpv4.MessageTypeAck)
			}
			if by := s.asked.of(hardware(19).String()); by[victim] != 0 || by[1-victim] != 2 {
				t.Errorf("got %v of the last machine, want DISCOVER and REQUEST by the other relay", by)
			}
		})
	}
}

// answer hears the next answer to a message, of a type: the other relay's copies are of earlier ones.
func (s *site) answer(t *testing.T, to *dhcpv4.DHCPv4, kind dhcpv4.MessageType) *dhcpv4.DHCPv4 {
	t.Helper()
	for {
		m, err := dhcpv4.FromBytes(s.pods[0].hear(t).Payload)
		if err == nil && m.TransactionID == to.TransactionID && m.MessageType() == kind {
			return m
		}
	}
}

// TestUdhcpcOfTwoReplicas: a real client asks once and is bound, with two relays and with one that was killed a moment
// before.
func TestUdhcpcOfTwoReplicas(t *testing.T) {
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		t.Skip("needs busybox (make test installs it)")
	}
	s := newSite(t)
	relays := s.start(t)
	lease := func(what string, answers int) {
		t.Helper()
		heard := s.capture(t)
		client := exec.Command(busybox, "udhcpc", "-i", "lan0", "-f", "-q", "-n", "-t", "5", "-T", "3", "-s", "/bin/true")
		s.pods[0].client.Do(t, func() error {
			output, err := client.CombinedOutput()
			t.Logf("%s:\n%s", what, output)
			return err
		})
		got := heard()
		if got[dhcpv4.MessageTypeDiscover] != 1 || got[dhcpv4.MessageTypeRequest] != 1 ||
			got[dhcpv4.MessageTypeOffer] != answers || got[dhcpv4.MessageTypeAck] != answers {
			t.Errorf("%s: got %v, want one DISCOVER and one REQUEST, and %d of each answer", what, got, answers)
		}
	}
	lease("both are there", 2)
	_ = relays[0].Process.Kill()
	<-relays[0].done
	lease("one was killed", 1)
}

// capture counts the DHCP messages on the LAN, by type, until the function that it returns is called.
func (s *site) capture(t *testing.T) func() map[dhcpv4.MessageType]int {
	t.Helper()
	conn := rawSocket(t, s.pods[0].client, "lan0", unix.ETH_P_ALL) // own transmissions, too
	counts := map[dhcpv4.MessageType]int{}
	done := make(chan struct{})
	go func() {
		defer close(done)
		b := make([]byte, 4096)
		for {
			n, _, err := conn.ReadFrom(b)
			if err != nil {
				return
			}
			datagram, fault := frame.Parse(b[:n], frame.Trust)
			if fault != frame.OK {
				continue
			}
			if m, err := dhcpv4.FromBytes(datagram.Payload); err == nil {
				counts[m.MessageType()]++
			}
		}
	}()
	return func() map[dhcpv4.MessageType]int {
		time.Sleep(300 * time.Millisecond) // for a second OFFER
		conn.Close()
		<-done
		return counts
	}
}

// TestReplicasAllRelayIPv6: of DHCPv6, too, each relay sends a machine's message to the server, and each is answered.
func TestReplicasAllRelayIPv6(t *testing.T) {
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
	first.lan6 = rawSocket(t, first.client, "lan0", unix.ETH_P_IPV6)
	s.start(t, "DHCPV6_ENABLED=true", "DHCPV6_SERVERS="+serverIP6.String())
	m, err := dhcpv6.NewSolicit(clientMAC)
	if err != nil {
		t.Fatal(err)
	}
	first.ask(t, m.ToBytes())
	by := map[netip.Addr]int{}
	for range 2 {
		b, from := receive(t, first.smee6)
		by[from.Addr()]++
		forward, err := dhcpv6.RelayMessageFromBytes(b)
		if err != nil {
			t.Fatal(err)
		}
		solicit, err := forward.GetInnerMessage()
		if err != nil {
			t.Fatal(err)
		}
		advertise, err := dhcpv6.NewAdvertiseFromSolicit(solicit)
		if err != nil {
			t.Fatal(err)
		}
		back, err := dhcpv6.NewRelayReplFromRelayForw(forward, advertise)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := first.smee6.WriteToUDPAddrPort(back.ToBytes(), from); err != nil {
			t.Fatal(err)
		}
	}
	if by[podIP6s[0]] != 1 || by[podIP6s[1]] != 1 {
		t.Errorf("the server heard %v, want one SOLICIT of each relay", by)
	}
	one, another := first.hear6(t, 546), first.hear6(t, 546)
	if diff := cmp.Diff(one.Payload, another.Payload); diff != "" {
		t.Errorf("the ADVERTISEs differ: %s", diff)
	}
}
