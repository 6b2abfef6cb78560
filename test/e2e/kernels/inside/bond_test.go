package inside

import (
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
)

// newBond makes a site whose node has a bond of two interfaces, at two ports of a switch. At another port is lan0.
func newBond(t *testing.T, mac netlink.BondFailOverMac) *site {
	t.Helper()
	s := newNode(t, newNS(t), newNS(t), podAddr, podAddr6)
	bond := netlink.NewLinkBond(netlink.LinkAttrs{Name: "bond0"})
	bond.Mode, bond.Miimon, bond.FailOverMac = netlink.BOND_MODE_ACTIVE_BACKUP, 50, mac
	made := s.node.add(t, bond)
	bridge := s.lan.add(t, &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "switch"}})
	join(t, s.lan, "lan0", s.lan, "port0")
	s.lan.put(t, "port0", bridge)
	for _, name := range []string{"a", "b"} {
		join(t, s.node, "nic"+name, s.lan, "port"+name)
		s.node.lower(t, "nic"+name)
		s.node.put(t, "nic"+name, made)
		s.lan.put(t, "port"+name, bridge)
		s.node.raise(t, "nic"+name)
	}
	return s
}

// keepsAsking sends DISCOVERs until one is relayed.
func (s *site) keepsAsking(t *testing.T, on, when string) {
	t.Helper()
	until(t, "a machine is relayed "+when, func() bool {
		frame, xid := ask(t, nil)
		s.send(t, on, frame)
		for range 20 {
			if len(s.server.requests(xid)) > 0 {
				return true
			}
			pause()
		}
		return false
	})
}

// A bond that loses a member goes on, one that loses both is not ready and says why, and one that has one again relays.
func TestBondFailover(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		kind string
		mac  netlink.BondFailOverMac
	}{
		"macvlan":                          {"macvlan", netlink.BOND_FAIL_OVER_MAC_NONE},
		"macvlan, the active member's MAC": {"macvlan", netlink.BOND_FAIL_OVER_MAC_ACTIVE},
		"ipvlan, the active member's MAC":  {"ipvlan", netlink.BOND_FAIL_OVER_MAC_ACTIVE},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newBond(t, test.mac)
			parent, machine := s.node.vlan(t, "bond0", 20, ctag), s.lan.vlan(t, "lan0", 20, ctag)
			s.listen(t, test.kind, parent)
			if err := s.lease(t, machine, false); err != nil {
				t.Fatal(err)
			}
			if !s.relays(t, machine, nil, machine) { // once: never by each member
				t.Error("not relayed")
			}
			if err := s.lease6(t, machine); err != nil {
				t.Errorf("DHCPv6: %v", err)
			}
			s.lan.lower(t, "porta")
			s.keepsAsking(t, machine, "after the active member lost its link")
			if err := s.lease(t, machine, false); err != nil {
				t.Errorf("after the active member lost its link: %v", err)
			}
			s.rebinds(t, machine, s.bondMAC(t, test.kind, parent))
			s.lan.lower(t, "portb")
			until(t, "the relay is not ready", func() bool {
				err := s.ready(t)
				return err != nil && strings.Contains(err.Error(), "carrier")
			})
			s.lan.raise(t, "portb")
			succeeds(t, "the relay is ready again", func() error { return s.ready(t) })
			s.keepsAsking(t, machine, "after a member came back")
		})
	}
}

// bondMAC is the address that the switch expects answers from: a macvlan's own, or the bond's of that moment.
func (s *site) bondMAC(t *testing.T, kind, parent string) []byte {
	t.Helper()
	if kind == "macvlan" {
		return s.listenerMAC(t)
	}
	return s.node.link(t, parent).Attrs().HardwareAddr
}

// A member of a bond is refused as the parent, with the bond's name.
func TestBondMemberIsNoParent(t *testing.T) {
	t.Parallel()
	s := newBond(t, netlink.BOND_FAIL_OVER_MAC_NONE)
	status, lines := s.init(t, "BROADCAST_INIT_PARENT=nica")
	last := lines[len(lines)-1]
	said, _ := last["error"].(string)
	if status != 1 || last["cause"] != "bond_slave" || !strings.Contains(said, "bond0") {
		t.Errorf("got status %d, %v", status, last)
	}
}
