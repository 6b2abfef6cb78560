package wire

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
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
		all = append(all, ns)
	}
	return all
}

func open(t *testing.T, ns *nstest.NS, address string) *Port {
	t.Helper()
	var port *Port
	ns.Do(t, func() error {
		link, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		port, err = Open(link, netip.MustParseAddr(address))
		return err
	})
	t.Cleanup(func() { _ = port.Close() })
	return port
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
			if got, err := probe.Owners(t.Context(), port, 1, 100*time.Millisecond, false); err != nil || got != nil {
				t.Fatalf("owners %x before there is one: %v", got, err)
			}
			var want []frame.MAC
			for _, owner := range hosts[1:] {
				owner.Addr(t, "eth0", address+bits)
				want = append(want, mac(t, owner))
				slices.SortFunc(want, func(a, b frame.MAC) int { return slices.Compare(a[:], b[:]) })
				// The kernel takes an IPv6 address into use a moment after it was added.
				testwait.Success(t, "the owners are as they are", func() error {
					got, err := probe.Owners(t.Context(), port, 1, 100*time.Millisecond, false)
					if err != nil {
						t.Fatal(err)
					}
					if !slices.Equal(got, want) {
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

func TestAnnouncementsAreNoAnswers(t *testing.T) {
	for _, address := range []string{"192.0.2.10", "2001:db8::10"} {
		hosts := network(t, 2)
		asking, telling := open(t, hosts[0], address), open(t, hosts[1], address)
		if err := telling.Announce(); err != nil {
			t.Fatal(err)
		}
		owner, err := asking.Answer(time.Now().Add(200 * time.Millisecond))
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: got %x, %v", address, owner, err)
		}
	}
}

func TestLinksWithoutEthernet(t *testing.T) {
	_, err := Open(&net.Interface{Index: 1, Name: "lo"}, netip.MustParseAddr("192.0.2.10"))
	if err == nil || !strings.Contains(err.Error(), "link lo has no Ethernet address") {
		t.Errorf("got %v", err)
	}
	_, err = Open(&net.Interface{Index: 1 << 20, Name: "x", HardwareAddr: make([]byte, 6)}, netip.MustParseAddr("::1"))
	if err == nil {
		t.Error("opened a link that is not there")
	}
}
