package inside

import (
	"net"
	"testing"

	"github.com/gopacket/gopacket/layers"
	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/vishvananda/netlink"
)

const (
	ctag = netlink.VLAN_PROTOCOL_8021Q
	stag = netlink.VLAN_PROTOCOL_8021AD
)

// Machines on a VLAN boot through a listener whose parent is the VLAN's interface, and nobody else is relayed by it.
func TestTaggedParent(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"macvlan", "ipvlan"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			parent, machine := s.node.vlan(t, "nic0", 20, ctag), s.lan.vlan(t, "lan0", 20, ctag)
			s.listen(t, kind, parent)
			for name, broadcast := range map[string]bool{"unicast": false, "broadcast": true} {
				if err := s.lease(t, machine, broadcast); err != nil {
					t.Errorf("DHCPv4, answers by %s: %v", name, err)
				}
			}
			if err := s.lease6(t, machine); err != nil {
				t.Errorf("DHCPv6: %v", err)
			}
			request := s.asks(t, machine)
			if request.HopCount != 1 || request.GatewayIPAddr.String() != podAddr {
				t.Errorf("got %d hops, giaddr %s", request.HopCount, request.GatewayIPAddr)
			}
			for _, test := range []struct {
				name string
				tags []tag
				want bool
			}{
				{"the VLAN", []tag{q(0x0014)}, true},
				{"priority 5", []tag{q(0xa014)}, true},
				{"drop eligible", []tag{q(0x1014)}, true},
				{"priority 7, drop eligible", []tag{q(0xf014)}, true},
				{"untagged", nil, false},
				{"another VLAN", []tag{q(0x001e)}, false},
				{"a VLAN within the VLAN", []tag{q(0x0014), q(0x001e)}, false},
				{"a service VLAN around the VLAN", []tag{{layers.EthernetTypeQinQ, 100}, q(0x0014)}, false},
			} {
				if got := s.relays(t, "lan0", test.tags, machine); got != test.want {
					t.Errorf("%s: relayed %v, want %v", test.name, got, test.want)
				}
			}
			if s.relays(t, "lan0", []tag{q(0x0014), q(0)}, machine) {
				t.Log("a priority tag within the VLAN is relayed")
			}
			s.rebinds(t, machine, s.listenerMAC(t))
		})
	}
}

// listenerMAC is the address from which the listener sends.
func (s *site) listenerMAC(t *testing.T) net.HardwareAddr {
	t.Helper()
	return s.pod.link(t, "macvlan0").Attrs().HardwareAddr
}

// rebinds has a machine that has an address ask for it by broadcast. The answer goes to it alone, from the listener.
func (s *site) rebinds(t *testing.T, on string, from net.HardwareAddr) {
	t.Helper()
	w := openWire(t, s.lan, on)
	request := s.asks(t, on,
		dhcpv4.WithMessageType(dhcpv4.MessageTypeRequest), dhcpv4.WithClientIP(net.IPv4(192, 0, 2, 50)))
	ethernet, ip := w.reply(t, request.TransactionID)
	if ethernet.DstMAC.String() != request.ClientHWAddr.String() || ethernet.SrcMAC.String() != from.String() ||
		ip.DstIP.String() != "192.0.2.50" {
		t.Errorf("REBIND: got an answer to %s, %s from %s", ethernet.DstMAC, ip.DstIP, ethernet.SrcMAC)
	}
}

// A listener on a trunk hears what is untagged or has a mere priority, and no VLAN: whether the VLAN has an interface
// on the node or not, and whether the tag is in the frame or beside it.
func TestTrunk(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.listen(t, "macvlan", "nic0")
	machine := s.lan.vlan(t, "lan0", 20, ctag)
	check := func() {
		t.Helper()
		for _, test := range []struct {
			name string
			on   string
			tags []tag
			want bool
		}{
			{"untagged", "lan0", nil, true},
			{"VLAN 0", "lan0", []tag{q(0)}, true},
			{"priority 5", "lan0", []tag{q(0xa000)}, true},
			{"VLAN 20", "lan0", []tag{q(0x0014)}, false},
			{"VLAN 20, its tag beside the frame", machine, nil, false},
			{"VLAN 1", "lan0", []tag{q(0x0001)}, false},
			{"a VLAN within a service VLAN", "lan0", []tag{{layers.EthernetTypeQinQ, 100}, q(0x0014)}, false},
		} {
			if got := s.relays(t, test.on, test.tags, "lan0"); got != test.want {
				t.Errorf("%s: relayed %v, want %v", test.name, got, test.want)
			}
		}
	}
	check()
	s.node.vlan(t, "nic0", 20, ctag)
	check()
}

// Machines on a VLAN within a service VLAN boot.
func TestStackedTags(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	parent := s.node.vlan(t, s.node.vlan(t, "nic0", 100, stag), 20, ctag)
	machine := s.lan.vlan(t, s.lan.vlan(t, "lan0", 100, stag), 20, ctag)
	s.listen(t, "macvlan", parent)
	if err := s.lease(t, machine, false); err != nil {
		t.Error(err)
	}
	if !s.relays(t, "lan0", []tag{{layers.EthernetTypeQinQ, 100}, q(0x0014)}, machine) {
		t.Error("a frame that has both tags in it is not relayed")
	}
	if s.relays(t, "lan0", []tag{q(0x0064), q(0x0014)}, machine) {
		t.Error("a frame of another service VLAN is relayed")
	}
}

// A bridge that filters VLANs: its own interface hears no VLAN, and the VLAN's interface on it does.
func TestFilteringBridge(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	filtering := true
	bridge := s.node.add(t, &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br0"}, VlanFiltering: &filtering})
	s.node.put(t, "nic0", bridge)
	const access = 20
	for _, err := range []error{
		s.node.links.BridgeVlanAdd(s.node.link(t, "nic0"), access, true, true, false, true),
		s.node.links.BridgeVlanAdd(bridge, access, false, false, true, false),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	s.listen(t, "macvlan", s.node.vlan(t, "br0", access, ctag))
	if err := s.lease(t, "lan0", false); err != nil {
		t.Errorf("a machine of the VLAN: %v", err)
	}
	status, lines := s.init(t, "BROADCAST_INIT_PARENT=nic0", "BROADCAST_INIT_LISTENER=other0")
	if status != 1 || lines[len(lines)-1]["cause"] != "bridge_port" {
		t.Errorf("a port of the bridge: status %d, %v", status, lines)
	}
}
