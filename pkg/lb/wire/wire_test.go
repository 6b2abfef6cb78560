package wire

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"go.uber.org/goleak"

	"github.com/tinkerbell/stack/internal/nstest"
	"github.com/tinkerbell/stack/internal/testwait"
	"github.com/tinkerbell/stack/pkg/frame"
	"github.com/tinkerbell/stack/pkg/lb/probe"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// network is a switch with hosts on it.
func network(t *testing.T, hosts int) []*nstest.NS {
	t.Helper()
	sw := nstest.New(t)
	bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br0"}}
	if err := sw.Links().LinkAdd(bridge); err != nil {
		t.Fatal(err)
	}
	if err := sw.Links().LinkSetUp(bridge); err != nil {
		t.Fatal(err)
	}
	var all []*nstest.NS
	for i := range hosts {
		ns, port := nstest.New(t), "port"+string(rune('0'+i))
		nstest.Veth(t, ns, "eth0", sw, port)
		if err := sw.Links().LinkSetMaster(sw.Link(t, port), bridge); err != nil {
			t.Fatal(err)
		}
		ns.Addr(t, "eth0", fmt.Sprintf("192.0.2.%d/24", i+1))
		all = append(all, ns)
	}
	return all
}

// sockets are those of all hosts of a test, by the host.
var sockets sync.Map

func open(t *testing.T, ns *nstest.NS, address string) *Port {
	t.Helper()
	var port *Port
	ns.Do(t, func() error {
		link, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		var source netip.Addr
		addresses, err := link.Addrs()
		for _, a := range addresses {
			prefix := netip.MustParsePrefix(a.String())
			if !prefix.IsSingleIP() && prefix.Addr().Is4() == netip.MustParseAddr(address).Is4() {
				source = prefix.Addr()
			}
		}
		if err != nil {
			return err
		}
		wires, _ := sockets.LoadOrStore(ns, &Wires{})
		port, err = wires.(*Wires).Open(link, source, netip.MustParseAddr(address))
		return err
	})
	t.Cleanup(func() { _ = port.Close() })
	return port
}

// owners asks for the address of a port, and returns who answers.
func owners(t *testing.T, port *Port) []frame.MAC {
	t.Helper()
	if err := port.Ask(); err != nil {
		t.Fatal(err)
	}
	var found []frame.MAC
	for _, h := range heard(t, port) {
		if h.Kind == probe.Answer {
			found = append(found, h.MAC)
		}
	}
	slices.SortFunc(found, func(a, b frame.MAC) int { return slices.Compare(a[:], b[:]) })
	return found
}

// heard is what a port hears in a moment.
func heard(t *testing.T, port *Port) (all []probe.Heard) {
	t.Helper()
	for deadline := time.Now().Add(150 * time.Millisecond); ; {
		h, err := port.Hear(t.Context(), deadline)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, h)
	}
}

func mac(t *testing.T, ns *nstest.NS) frame.MAC {
	return frame.MAC(ns.Link(t, "eth0").Attrs().HardwareAddr)
}

// Each owner of an address answers one question once; nobody answers for an address that nobody has.
func TestOwnersOnASwitch(t *testing.T) {
	for address, bits := range map[string]string{"192.0.2.10": "/32", "2001:db8::10": "/128"} {
		t.Run(address, func(t *testing.T) {
			hosts := network(t, 3)
			port := open(t, hosts[0], address)
			if got := owners(t, port); got != nil {
				t.Fatalf("owners %x before there is one", got)
			}
			var want []frame.MAC
			for _, owner := range hosts[1:] {
				owner.Addr(t, "eth0", address+bits)
				want = append(want, mac(t, owner))
				slices.SortFunc(want, func(a, b frame.MAC) int { return slices.Compare(a[:], b[:]) })
				// The kernel takes an IPv6 address into use a moment after it was added.
				testwait.Success(t, "the owners are as they are", func() error {
					if got := owners(t, port); !slices.Equal(got, want) {
						return fmt.Errorf("owners %x, want %x", got, want)
					}
					return nil
				})
			}
		})
	}
}

// A neighbour that remembers the old owner sends to the new one after one announcement, and not before.
func TestAnnouncementMovesTheAddress(t *testing.T) {
	for address, network6 := range map[string][2]string{
		"192.0.2.10": {"192.0.2.1/24", "/32"}, "2001:db8::10": {"2001:db8::1/64", "/128"},
	} {
		t.Run(address, func(t *testing.T) {
			hosts := network(t, 3)
			client, from, to := hosts[0], hosts[1], hosts[2]
			client.Addr(t, "eth0", network6[0])
			link := client.Link(t, "eth0")
			old := &netlink.Neigh{
				LinkIndex: link.Attrs().Index, IP: net.ParseIP(address), State: netlink.NUD_REACHABLE,
				HardwareAddr: from.Link(t, "eth0").Attrs().HardwareAddr,
			}
			if err := client.Links().NeighSet(old); err != nil {
				t.Fatal(err)
			}
			time.Sleep(1100 * time.Millisecond) // Linux keeps a fresh entry for its locktime
			to.Addr(t, "eth0", address+network6[1])
			port := open(t, to, address)
			if remembered(t, client, address) != mac(t, from) {
				t.Fatal("the client has forgotten the old owner by itself")
			}
			if err := port.Announce(); err != nil {
				t.Fatal(err)
			}
			testwait.Until(t, "the client sends to the new owner", func() bool {
				return remembered(t, client, address) == mac(t, to)
			})
		})
	}
}

func remembered(t *testing.T, ns *nstest.NS, address string) frame.MAC {
	t.Helper()
	all, err := ns.Links().NeighList(ns.Link(t, "eth0").Attrs().Index, netlink.FAMILY_ALL)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range all {
		if n.IP.Equal(net.ParseIP(address)) && len(n.HardwareAddr) == 6 {
			return frame.MAC(n.HardwareAddr)
		}
	}
	return frame.MAC{}
}

// What a host says of an address without being asked is heard as what it is, by whoever asks for that address alone.
func TestWhatOthersSay(t *testing.T) {
	for _, address := range []string{"192.0.2.10", "2001:db8::10"} {
		t.Run(address, func(t *testing.T) {
			other := map[bool]string{true: "192.0.2.11", false: "2001:db8::1:10"}[netip.MustParseAddr(address).Is4()]
			hosts := network(t, 2)
			hearing, elsewhere := open(t, hosts[0], address), open(t, hosts[0], other)
			telling := open(t, hosts[1], address)
			for name, say := range map[string]struct {
				do   func() error
				want []probe.Kind
			}{
				"announces": {telling.Announce, []probe.Kind{probe.Claim, probe.Claim}},
				"probes":    {telling.Probe, []probe.Kind{probe.Probing}},
				"asks":      {telling.Ask, nil},
			} {
				if err := say.do(); err != nil {
					t.Fatal(err)
				}
				var got []probe.Kind
				for _, h := range heard(t, hearing) {
					if got = append(got, h.Kind); h.MAC != mac(t, hosts[1]) {
						t.Errorf("%s: heard %x", name, h.MAC)
					}
				}
				if netip.MustParseAddr(address).Is6() && len(say.want) > 1 {
					say.want = say.want[:1] // one message
				}
				if !slices.Equal(got, say.want) {
					t.Errorf("%s: heard %v, want %v", name, got, say.want)
				}
			}
			if all := heard(t, elsewhere); all != nil {
				t.Errorf("heard %v of another address", all)
			}
		})
	}
}

// The owner of an address answers a probe as well, and that is no answer to a question.
func TestProbesAreAnswered(t *testing.T) {
	for address, bits := range map[string]string{"192.0.2.10": "/32", "2001:db8::10": "/128"} {
		hosts := network(t, 2)
		port := open(t, hosts[0], address)
		hosts[1].Addr(t, "eth0", address+bits)
		want := []probe.Heard{{Kind: probe.Claim, MAC: mac(t, hosts[1])}}
		testwait.Success(t, "a probe is answered", func() error {
			heard(t, port)
			if err := port.Probe(); err != nil {
				t.Fatal(err)
			}
			if got := heard(t, port); !slices.Equal(got, want) {
				return fmt.Errorf("heard %v, want %v", got, want)
			}
			return nil
		})
	}
}

// The addresses of a link share a socket for each family, so that the kernel runs one filter for a frame and not one for
// each address; the last port closes it.
func TestAddressesShareASocket(t *testing.T) {
	hosts := network(t, 1)
	var ports []*Port
	for i := range 2 * maxSelected {
		ports = append(ports, open(t, hosts[0], fmt.Sprintf("2001:db8::%x", 16+i)), open(t, hosts[0], testIPv4(i)))
		if i > 10 && i < maxSelected-5 {
			continue // quick
		}
		if i > maxSelected+5 {
			break
		}
	}
	wires, _ := sockets.Load(hosts[0])
	if n := len(wires.(*Wires).sockets); n != 2 {
		t.Errorf("%d sockets for %d addresses", n, len(ports))
	}
	for _, p := range ports {
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(wires.(*Wires).sockets); n != 0 {
		t.Errorf("%d sockets are left", n)
	}
}

func testIPv4(i int) string { return fmt.Sprintf("198.51.%d.%d", i/250, 1+i%250) }

// A node whose bridge has lost its uplink hears nobody, though its own link is up.
func TestNodeBehindABridgeWithoutUplink(t *testing.T) {
	hosts := network(t, 3)
	node, others := hosts[0], []string{"192.0.2.2", "192.0.2.3", "192.0.2.99"}
	answered := func() bool {
		var ports []probe.Port
		for _, other := range others {
			ports = append(ports, open(t, node, other))
		}
		return probe.Answered(t.Context(), ports, func() {}, func(m frame.MAC) bool { return m == mac(t, node) })
	}
	if !answered() {
		t.Error("nobody answers")
	}
	for _, host := range hosts[1:] { // as with the bridge's uplink: that of this node stays as it is
		if err := host.Links().LinkSetDown(host.Link(t, "eth0")); err != nil {
			t.Fatal(err)
		}
	}
	if answered() {
		t.Error("somebody answers")
	}
}

func TestLinksWithoutEthernet(t *testing.T) {
	var wires Wires
	_, err := wires.Open(&net.Interface{Index: 1, Name: "lo"}, netip.Addr{}, netip.MustParseAddr("192.0.2.10"))
	if err == nil || !strings.Contains(err.Error(), "link lo has no Ethernet address") {
		t.Errorf("got %v", err)
	}
	_, err = wires.Open(&net.Interface{Index: 1 << 20, Name: "x", HardwareAddr: make([]byte, 6)}, netip.Addr{}, netip.MustParseAddr("::1"))
	if err == nil {
		t.Error("opened a link that is not there")
	}
}

// Others' questions for an IPv6 address come through a switch that goes by reports of MLD: this host is a member of their
// group for as long as a port of one of the group's addresses is open.
func TestGroupOfQuestions(t *testing.T) {
	hosts := network(t, 1)
	member := func() (is bool) {
		hosts[0].Do(t, func() error {
			text, err := os.ReadFile("/proc/thread-self/net/igmp6")
			is = strings.Contains(string(text), "ff0200000000000000000001ff345678")
			return err
		})
		return is
	}
	first, second := open(t, hosts[0], "2001:db8::1234:5678"), open(t, hosts[0], "2001:db8::9934:5678")
	if !member() {
		t.Error("not a member")
	}
	_ = first.Close()
	if !member() {
		t.Error("no member any more beside a port of the group")
	}
	_ = second.Close()
	if member() {
		t.Error("a member for nobody")
	}
}
