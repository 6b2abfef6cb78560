package main

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/mdlayher/packet"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/internal/nstest"
	"github.com/tinkerbell/stack/internal/testwait"
	"github.com/tinkerbell/stack/pkg/frame"
)

// site is two nodes on one provisioning VLAN, each with a pod whose listener is a macvlan on the node's interface, as
// broadcast-init makes it. Behind them is a server that gives each machine an address.
type site struct {
	machines int // that have asked
	nodes    [2]*nstest.NS
	pods     [2]*lab // they share client, server and the socket on the LAN
	asked    *tally
}

var podIPs = [2]netip.Addr{podIP, netip.MustParseAddr("10.244.0.20")}

// serviceCIDR is the stack's address on a node: as a load balancer adds it.
const serviceCIDR = "192.0.2.2/32"

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
	first.rejoinOpen(t)
	smee := first.listen(t, first.server, netip.AddrPortFrom(serverIP, 67))
	for _, l := range s.pods {
		l.lan, l.smee = first.lan, smee
	}
	go s.serve(smee)
	return s
}

// rejoinOpen opens the client's socket on the LAN.
func (l *lab) rejoinOpen(t *testing.T) {
	t.Helper()
	l.client.Do(t, func() error {
		link, err := net.InterfaceByName("lan0")
		if err != nil {
			return err
		}
		l.lan, err = packet.Listen(link, packet.Raw, unix.ETH_P_IP, nil)
		return err
	})
	t.Cleanup(func() { l.lan.Close() })
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

// own gives a node the stack's address, or takes it away.
func (s *site) own(t *testing.T, node int, has bool) {
	t.Helper()
	address, err := netlink.ParseAddr(serviceCIDR)
	if err != nil {
		t.Fatal(err)
	}
	links, link := s.nodes[node].Links(), s.nodes[node].Link(t, "eth1")
	if has {
		err = links.AddrAdd(link, address)
	} else {
		err = links.AddrDel(link, address)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// start runs a relay in each pod and waits until they know of each other.
func (s *site) start(t *testing.T, env ...string) (relays [2]*process) {
	t.Helper()
	env = append([]string{"SOURCE_ADDRESS=" + serviceIP.String()}, env...)
	for i, l := range s.pods {
		relays[i] = l.start(t, env...)
	}
	for _, p := range relays {
		p.waitReady(t)
		p.wantMetric(t, `dhcp_relay_peers{listener="macvlan0"} 1`)
	}
	return relays
}

func (p *process) wantShare(t *testing.T, share string) {
	t.Helper()
	p.wantMetric(t, `dhcp_relay_share_ratio{listener="macvlan0"} `+share)
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

// all broadcasts a DISCOVER of each of many machines, which have not asked before, and returns how many of them each pod
// relayed; each one relayed by one pod, once.
func (s *site) all(t *testing.T, machines int) (by [2]int) {
	t.Helper()
	first := s.machines + 1
	s.machines += machines
	for n := first; n <= s.machines; n++ {
		mac := s.discover(t, n)
		testwait.Until(t, "the server hears of machine "+mac, func() bool { return s.asked.of(mac) != [2]int{} })
	}
	time.Sleep(200 * time.Millisecond) // for a second copy
	for n := first; n <= s.machines; n++ {
		mac := hardware(n).String()
		got := s.asked.of(mac)
		if got[0]+got[1] != 1 {
			t.Errorf("machine %s was relayed %d times by the first and %d times by the second replica, want once",
				mac, got[0], got[1])
		}
		by[0] += got[0]
		by[1] += got[1]
	}
	return by
}

// TestReplicaOfTheOwnerRelays: with the stack's address on one node, its replica relays everything and the other
// nothing; when the address moves the other one does, and on no node, they share.
func TestReplicaOfTheOwnerRelays(t *testing.T) {
	s := newSite(t)
	s.own(t, 0, true)
	relays := s.start(t, "PEERS=owner")
	relays[0].wantShare(t, "1")
	relays[1].wantShare(t, "0")
	if by := s.all(t, 40); by != [2]int{40, 0} {
		t.Errorf("got %v, want all by the first", by)
	}
	relays[0].wantMetric(t, `dhcp_relay_owner{listener="macvlan0"} 1`)
	relays[1].wantMetric(t, `dhcp_relay_owner{listener="macvlan0"} 0`)
	relays[1].wantMetric(t,
		`dhcp_relay_drops_total{direction="to-server",listener="macvlan0",reason="other-replica"} 40`)

	s.own(t, 0, false)
	s.own(t, 1, true)
	s.all(t, 20) // once each, whatever the replicas know by now
	relays[1].wantShare(t, "1")
	relays[0].wantShare(t, "0")
	if by := s.all(t, 40); by != [2]int{0, 40} {
		t.Errorf("after the address has moved: got %v, want all by the second", by)
	}

	s.own(t, 1, false)
	relays[0].wantMetric(t, `dhcp_relay_owner{listener="macvlan0"} 1`) // nobody answers: each might have it
	if by := s.all(t, 40); by[0] == 0 || by[1] == 0 {
		t.Errorf("without an owner: got %v, want both to relay", by)
	}
}

// stands is whether all threads of a process have stopped. One that has not yet may still relay a packet.
func stands(t *testing.T, pid int) bool {
	t.Helper()
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil || len(threads) == 0 {
		t.Fatalf("no threads of process %d: %v", pid, err)
	}
	for _, thread := range threads {
		text, _ := os.ReadFile(thread)
		if _, state, _ := strings.Cut(string(text), ") "); !strings.HasPrefix(state, "T ") {
			return false
		}
	}
	return true
}

// TestReplicaTakesOver: the owner's node is gone, its relay hangs, or it is told to end: the machine's next message is
// relayed by the other one, and so is all that follows.
func TestReplicaTakesOver(t *testing.T) {
	tests := map[string]struct {
		end   func(t *testing.T, s *site, p *process)
		first bool // the first message after it is relayed
	}{
		"killed": {end: func(t *testing.T, _ *site, p *process) { _ = p.Process.Kill(); <-p.done }},
		"hangs": {end: func(t *testing.T, _ *site, p *process) {
			_ = p.Process.Signal(syscall.SIGSTOP)
			t.Cleanup(func() { _ = p.Process.Signal(syscall.SIGCONT) }) // before the one that ends it
			testwait.Until(t, "the relay stands", func() bool { return stands(t, p.Process.Pid) })
		}},
		"its node is gone": {end: func(t *testing.T, s *site, _ *process) {
			if err := s.nodes[0].Links().LinkSetDown(s.nodes[0].Link(t, "eth1")); err != nil {
				t.Fatal(err)
			}
		}},
		"ends in order": {first: true, end: func(t *testing.T, _ *site, p *process) {
			_ = p.Process.Signal(syscall.SIGTERM)
			<-p.done
		}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			s.own(t, 0, true)
			relays := s.start(t, "PEERS=owner")
			relays[1].wantShare(t, "0")
			relays[0].wantShare(t, "1")
			test.end(t, s, relays[0])
			mac := s.discover(t, 0)
			if test.first {
				testwait.Until(t, "the second replica relays", func() bool { return s.asked.of(mac) == [2]int{0, 1} })
				return
			}
			time.Sleep(1100 * time.Millisecond) // firmware waits for a second at the least
			before := s.asked.of(mac)
			s.discover(t, 0)
			testwait.Until(t, "the second replica relays the first repetition", func() bool {
				return s.asked.of(mac)[1] == before[1]+1
			})
			if by := s.asked.of(mac); by[0] != 0 || by[1] > 2 {
				t.Errorf("got %v", by)
			}
			if by := s.all(t, 10); by != [2]int{0, 10} {
				t.Errorf("got %v, want all by the second", by)
			}
		})
	}
}

// TestReplicasShareMachines: where no owner can be known each machine is one replica's, by its hash.
func TestReplicasShareMachines(t *testing.T) {
	s := newSite(t)
	relays := s.start(t, "PEERS=hash", "TOKEN_KEY=0123456789abcdef")
	if by := s.all(t, 60); by[0] < 10 || by[1] < 10 {
		t.Errorf("got %v of 60 machines, want both to relay", by)
	}
	_ = relays[1].Process.Kill()
	<-relays[1].done
	relays[0].wantShare(t, "1")
	if by := s.all(t, 20); by != [2]int{20, 0} {
		t.Errorf("got %v, want all by the first", by)
	}
}

// TestReplicasWithOtherKeysDoNotAgree: each relays everything, as without PEERS, and says why.
func TestReplicasWithOtherKeysDoNotAgree(t *testing.T) {
	s := newSite(t)
	var relays [2]*process
	for i, l := range s.pods {
		relays[i] = l.start(t, "PEERS=hash", "SOURCE_ADDRESS="+serviceIP.String(),
			"TOKEN_KEY="+strings.Repeat([]string{"a", "b"}[i], 16))
	}
	for _, p := range relays {
		p.waitReady(t)
		p.wantShare(t, "1")
		testwait.Until(t, "it says so", func() bool {
			return strings.Contains(p.log.String(), "refused another replica's hello")
		})
	}
	mac := s.discover(t, 0)
	testwait.Until(t, "both relay", func() bool { return s.asked.of(mac) == [2]int{1, 1} })
}

// TestOneOfferForUdhcpc: a real client of several gets one OFFER and one ACK, and so it does when the relay that should
// have relayed was killed a moment before.
func TestOneOfferForUdhcpc(t *testing.T) {
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		t.Skip("needs busybox (make test installs it)")
	}
	s := newSite(t)
	s.own(t, 0, true)
	relays := s.start(t, "PEERS=owner")
	relays[0].wantShare(t, "1")
	relays[1].wantShare(t, "0")
	lease := func(what string, discovers int) {
		t.Helper()
		heard := s.capture(t)
		client := exec.Command(busybox, "udhcpc", "-i", "lan0", "-f", "-q", "-n", "-t", "5", "-T", "1", "-s", "/bin/true")
		s.pods[0].client.Do(t, func() error {
			output, err := client.CombinedOutput()
			t.Logf("%s:\n%s", what, output)
			return err
		})
		got := heard()
		if got[dhcpv4.MessageTypeOffer] != 1 || got[dhcpv4.MessageTypeAck] != 1 ||
			got[dhcpv4.MessageTypeDiscover] > discovers || got[dhcpv4.MessageTypeRequest] != 1 {
			t.Errorf("%s: got %v, want at most %d DISCOVER, and one of each other", what, got, discovers)
		}
	}
	lease("both are there", 1)
	_ = relays[0].Process.Kill()
	lease("the owner's was killed", 2)
}

// capture counts the DHCP messages on the LAN, by type, until the function that it returns is called.
func (s *site) capture(t *testing.T) func() map[dhcpv4.MessageType]int {
	t.Helper()
	var conn *packet.Conn
	s.pods[0].client.Do(t, func() error {
		link, err := net.InterfaceByName("lan0")
		if err != nil {
			return err
		}
		conn, err = packet.Listen(link, packet.Raw, unix.ETH_P_ALL, nil) // own transmissions, too
		return err
	})
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

// TestReplicaWithoutServerLeavesMachinesToTheOther: it hears machines, and could do nothing for them.
func TestReplicaWithoutServerLeavesMachinesToTheOther(t *testing.T) {
	s := newSite(t)
	first := s.pods[0].start(t, "PEERS=hash", "SERVERS=198.51.100.1", "SOURCE_ADDRESS="+serviceIP.String()) // no route
	second := s.pods[1].start(t, "PEERS=hash", "SOURCE_ADDRESS="+serviceIP.String())
	second.waitReady(t)
	second.wantMetric(t, `dhcp_relay_peers{listener="macvlan0"} 1`)
	second.wantShare(t, "1")
	if by := s.all(t, 20); by != [2]int{0, 20} {
		t.Errorf("got %v, want all by the second", by)
	}
	first.wantShare(t, "0")
}

// TestReplicaLosesItsListener: it is not ready, relays nothing of what it last knew, and shares again when the listener
// is back.
func TestReplicaLosesItsListener(t *testing.T) {
	s := newSite(t)
	relays := s.start(t, "PEERS=hash")
	links := s.nodes[0].Links()
	if err := links.LinkSetDown(s.nodes[0].Link(t, "eth1")); err != nil {
		t.Fatal(err)
	}
	relays[0].waitNotReady(t, "listens for other replicas")
	relays[1].wantShare(t, "1")
	if err := links.LinkSetUp(s.nodes[0].Link(t, "eth1")); err != nil {
		t.Fatal(err)
	}
	relays[0].waitReady(t)
	for _, p := range relays {
		p.wantMetric(t, `dhcp_relay_peers{listener="macvlan0"} 1`)
	}
	if by := s.all(t, 60); by[0] < 10 || by[1] < 10 {
		t.Errorf("got %v of 60 machines, want both to relay", by)
	}
}
