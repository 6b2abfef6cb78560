package hostlink

import (
	"errors"
	"net"
	"os"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/internal/nstest"
	"github.com/tinkerbell/stack/internal/testwait"
)

// heedAdvertisements has a link configure itself from router advertisements, whatever the machine's defaults are.
func heedAdvertisements(t *testing.T, ns *nstest.NS, link string) {
	t.Helper()
	ns.Do(t, func() error {
		return os.WriteFile("/proc/sys/net/ipv6/conf/"+link+"/accept_ra", []byte("2"), 0o600)
	})
}

// advertise sends a router advertisement (RFC 4861 4.2) for 2001:db8:66::/64 to all nodes.
func advertise(t *testing.T, ns *nstest.NS, link string) {
	t.Helper()
	advertisement := []byte{
		134, 0, 0, 0, 64, 0, 0x07, 0x08, 0, 0, 0, 0, 0, 0, 0, 0, // hop limit 64, router for 1800 s
		3, 4, 64, 0xc0, 0, 1, 0x51, 0x80, 0, 1, 0x51, 0x80, 0, 0, 0, 0, // a prefix, on link and autonomous
		0x20, 0x01, 0x0d, 0xb8, 0, 0x66, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
	}
	ns.Do(t, func() error {
		conn, err := net.ListenPacket("ip6:ipv6-icmp", "::")
		if err != nil {
			return err
		}
		defer conn.Close()
		_, err = ipv6.NewPacketConn(conn).WriteTo(advertisement, &ipv6.ControlMessage{HopLimit: 255},
			&net.IPAddr{IP: net.ParseIP("ff02::1"), Zone: link})
		return err
	})
}

func globalAddresses(t *testing.T, ns *nstest.NS, link string) []string {
	t.Helper()
	addresses, err := ns.Links().AddrList(ns.Link(t, link), netlink.FAMILY_V6)
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, address := range addresses {
		if address.IP.IsGlobalUnicast() {
			found = append(found, address.String())
		}
	}
	return found
}

// TestAdvertisementGivesNoAddress: the node's own interface takes what a router on the network advertises, the
// listener does not.
func TestAdvertisementGivesNoAddress(t *testing.T) {
	n := newNode(t)
	h := n.open(t)
	if _, err := h.Ensure(Spec{Name: "macvlan0", Parent: "prov0"}); err != nil {
		t.Fatal(err)
	}
	n.lan.Addr(t, "lan0", "fe80::9/64")
	heedAdvertisements(t, n.host, "prov0")
	heedAdvertisements(t, n.pod, "macvlan0")
	tell := func(ns *nstest.NS, link string) {
		testwait.Until(t, link+" has an address", func() bool {
			advertise(t, n.lan, "lan0")
			time.Sleep(10 * time.Millisecond)
			return len(globalAddresses(t, ns, link)) > 0
		})
	}
	tell(n.host, "prov0")
	if got := globalAddresses(t, n.pod, "macvlan0"); got != nil {
		t.Errorf("got addresses %v on the listener", got)
	}
	routes, err := n.pod.Links().RouteList(nil, netlink.FAMILY_V6)
	for _, route := range routes {
		if route.Gw != nil {
			t.Errorf("got route %v in the pod (%v)", route, err)
		}
	}
	// Without the rule it would have taken it.
	n.pod.Do(t, func() error { return reunite("macvlan0") })
	tell(n.pod, "macvlan0")
}

// TestPodIsNotReachedThroughListener has a machine send straight to the listener's MAC address what is meant for the
// pod's address, past the service.
func TestPodIsNotReachedThroughListener(t *testing.T) {
	n := newNode(t)
	h := n.open(t)
	listener, err := h.Ensure(Spec{Name: "macvlan0", Parent: "prov0"})
	if err != nil {
		t.Fatal(err)
	}
	nstest.Veth(t, n.pod, "eth0", n.host, "cni0")
	n.pod.Addr(t, "eth0", "10.244.0.10/24")
	n.pod.Route(t, "default", "10.244.0.1")
	n.lan.Addr(t, "lan0", "10.244.0.9/24")
	if err := n.lan.Links().NeighAdd(&netlink.Neigh{
		LinkIndex: n.lan.Link(t, "lan0").Attrs().Index, State: netlink.NUD_PERMANENT, IP: net.IPv4(10, 244, 0, 10),
		HardwareAddr: listener.MAC,
	}); err != nil {
		t.Fatal(err)
	}
	var port, machine *net.UDPConn
	n.pod.Do(t, func() (err error) {
		port, err = net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(10, 244, 0, 10), Port: 8080})
		return errors.Join(err, os.WriteFile("/proc/sys/net/ipv4/conf/all/rp_filter", []byte("0"), 0o600),
			os.WriteFile("/proc/sys/net/ipv4/conf/macvlan0/rp_filter", []byte("0"), 0o600))
	})
	defer port.Close()
	n.lan.Do(t, func() (err error) {
		machine, err = net.DialUDP("udp4", nil, &net.UDPAddr{IP: net.IPv4(10, 244, 0, 10), Port: 8080})
		return err
	})
	defer machine.Close()
	reached := func() bool {
		if _, err := machine.Write([]byte("hello")); err != nil {
			t.Fatal(err)
		}
		if err := port.SetReadDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		_, _, err := port.ReadFromUDP(make([]byte, 16))
		return err == nil
	}
	if reached() {
		t.Error("got the pod reached through the listener")
	}
	n.pod.Do(t, func() error { return reunite("macvlan0") })
	if !reached() {
		t.Error("got the pod not reached without the rule: this test shows nothing")
	}
	// As a later run puts it back.
	if _, err := h.Ensure(Spec{Name: "macvlan0", Parent: "prov0"}); err != nil {
		t.Fatal(err)
	}
	if reached() {
		t.Error("got the pod reached after the rule was put back")
	}
}

// TestWithoutNftables makes the listener all the same, and says what that means.
func TestWithoutNftables(t *testing.T) {
	n := newNode(t)
	h := n.open(t)
	h.filterErr = unix.EPROTONOSUPPORT
	got, err := h.Ensure(Spec{Name: "macvlan0", Parent: "prov0"})
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Warnings) != 1 || got.Warnings[0].Cause != NotIsolated ||
		!errors.Is(got.Warnings[0], unix.EPROTONOSUPPORT) {
		t.Errorf("got warnings %v, want one of cause not_isolated", got.Warnings)
	}
}

// TestFilterAfterFailure sends a batch that fails in its midst, and then a good one on the same socket.
func TestFilterAfterFailure(t *testing.T) {
	n := newNode(t)
	h := n.open(t)
	h.filter.AddChain(&nftables.Chain{
		Name: "none", Table: h.filter.AddTable(table("macvlan0")), Type: "nonsense", Hooknum: nftables.ChainHookPrerouting,
		Priority: nftables.ChainPriorityRef(0),
	})
	h.filter.remove("macvlan0")
	if err := h.filter.flush(); err == nil {
		t.Error("got no failure")
	}
	for range 3 {
		if err := h.filter.isolate("macvlan0", false); err != nil {
			t.Error(err)
		}
	}
}

// reunite undoes isolate.
func reunite(listener string) error {
	filter, err := dialFilter()
	if err != nil {
		return err
	}
	defer filter.close()
	filter.remove(listener)
	return filter.flush()
}
