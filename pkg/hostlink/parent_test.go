package hostlink

import (
	"net"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/internal/nstest"
)

// TestParent finds interfaces by everything that may name one.
func TestParent(t *testing.T) {
	n := newNode(t)
	nstest.Veth(t, n.host, "mgmt0", n.lan, "lan1")
	links := n.host.Links()
	mac := net.HardwareAddr{2, 0, 0, 0, 0, 0x51}
	for _, err := range []error{
		links.LinkSetHardwareAddr(n.host.Link(t, "prov0"), mac),
		links.LinkAddAltName(n.host.Link(t, "prov0"), "enp2s0f0np0"),
		links.LinkAddAltName(n.host.Link(t, "prov0"), "a-name-longer-than-any-other"),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	n.host.Addr(t, "prov0", "192.0.2.10/24")
	n.host.Addr(t, "prov0", "2001:db8:1::10/64")
	n.host.Addr(t, "mgmt0", "198.51.100.10/24")
	n.host.Addr(t, "mgmt0", "198.51.100.11/24")
	n.host.Route(t, "default", "198.51.100.1")
	add(t, n.host, &netlink.Macvlan{
		LinkAttrs: netlink.LinkAttrs{Name: "shim0", ParentIndex: n.host.Link(t, "prov0").Attrs().Index},
		Mode:      netlink.MACVLAN_MODE_BRIDGE,
	})
	h := n.open(t)
	tests := map[string]struct{ selector, want, chosen string }{
		"name":              {"prov0", "prov0", "name"},
		"altname":           {"enp2s0f0np0", "prov0", "altname enp2s0f0np0"},
		"long altname":      {"a-name-longer-than-any-other", "prov0", "altname a-name-longer-than-any-other"},
		"MAC address":       {mac.String(), "prov0", "MAC address " + mac.String()},
		"MAC address, caps": {"02-00-00-00-00-51", "prov0", "MAC address 02-00-00-00-00-51"},
		"IPv4 address":      {"192.0.2.10", "prov0", "address 192.0.2.10"},
		"IPv6 address":      {"2001:db8:1::10", "prov0", "address 2001:db8:1::10"},
		"IPv4 prefix":       {"192.0.2.0/24", "prov0", "address in 192.0.2.0/24"},
		"IPv4 prefix, host": {"192.0.2.77/25", "prov0", "address in 192.0.2.0/25"},
		"IPv6 prefix":       {"2001:db8::/32", "prov0", "address in 2001:db8::/32"},
		"two addresses":     {"198.51.100.0/24", "mgmt0", "address in 198.51.100.0/24"},
		"default route":     {"", "mgmt0", "IPv4 default route"},
		"a macvlan":         {"shim0", "prov0", "name, shim0 on it is of kind macvlan"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := h.Parent(test.selector)
			if err != nil {
				t.Fatal(err)
			}
			if got.Name != test.want || got.Chosen != test.chosen {
				t.Errorf("got %s by %q, want %s by %q", got.Name, got.Chosen, test.want, test.chosen)
			}
		})
	}
	failures := map[string]struct {
		selector string
		cause    Cause
		text     string
	}{
		"no such name":    {"eth9", NoParent, "the node has: shim0"},
		"no such MAC":     {"02:ff:ff:ff:ff:ff", NoParent, `"02:ff:ff:ff:ff:ff"`},
		"no such address": {"203.0.113.1", NoParent, `"203.0.113.1"`},
		"loopback":        {"127.0.0.1", NoParent, `"127.0.0.1"`},
		"both":            {"192.0.0.0/5", Ambiguous, "mgmt0"},
		"absurd name":     {strings.Repeat("x", 200), NoParent, "xxx"},
	}
	for name, test := range failures {
		t.Run(name, func(t *testing.T) {
			_, err := h.Parent(test.selector)
			wantCause(t, err, test.cause)
			if !strings.Contains(err.Error(), test.text) {
				t.Errorf("got %q, want %q in it", err, test.text)
			}
		})
	}
}

func TestParentByIPv6DefaultRoute(t *testing.T) {
	n := newNode(t)
	n.host.Addr(t, "prov0", "2001:db8::10/64")
	h := n.open(t)
	_, err := h.Parent("")
	wantCause(t, err, NoRoute)
	n.host.Route(t, "default", "2001:db8::1")
	got, err := h.Parent("")
	if err != nil || got.Name != "prov0" || got.Chosen != "IPv6 default route" {
		t.Errorf("got %s by %q, %v; want prov0 by IPv6 default route", got.Name, got.Chosen, err)
	}
}

// TestWithMAC has the links share an address as a node's do.
func TestWithMAC(t *testing.T) {
	mac := net.HardwareAddr{2, 0, 0, 0, 0, 1}
	ether := func(index int, name, kind string, master, lower int) Link {
		return Link{
			Index: index, Name: name, Kind: kind, MAC: mac, ethernet: true, master: master, lower: lower, lowerNS: -1,
		}
	}
	tests := map[string]struct {
		links []Link
		want  string
	}{
		"a bond and its members": {
			[]Link{ether(1, "eth0", "device", 3, 0), ether(2, "eth1", "device", 3, 0), ether(3, "bond0", "bond", 0, 0)},
			"bond0",
		},
		"a bridge and its port":   {[]Link{ether(1, "eth0", "device", 2, 0), ether(2, "br0", "bridge", 0, 0)}, "br0"},
		"an interface and VLANs":  {[]Link{ether(1, "eth0", "device", 0, 0), ether(2, "eth0.20", "vlan", 0, 1)}, "eth0"},
		"a VLAN of another's MAC": {[]Link{ether(2, "eth0.20", "vlan", 0, 1)}, "eth0.20"},
		"a bond with VLANs on a bridge": {
			[]Link{
				ether(1, "eth0", "device", 2, 0), ether(2, "bond0", "bond", 4, 0), ether(3, "bond0.20", "vlan", 0, 2),
				ether(4, "br0", "bridge", 0, 0),
			},
			"br0",
		},
		"two": {[]Link{ether(1, "eth0", "device", 0, 0), ether(2, "eth1", "device", 0, 0)}, "eth0 eth1"},
		"not Ethernet": {
			[]Link{{Index: 1, Name: "ib0", MAC: mac}}, "",
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, link := range withMAC(test.links, mac) {
				got = append(got, link.Name)
			}
			if strings.Join(got, " ") != test.want {
				t.Errorf("got %v, want %s", got, test.want)
			}
		})
	}
}

// TestUnfitParents has each unfit parent named together with the cure.
func TestUnfitParents(t *testing.T) {
	tests := map[string]struct {
		prepare func(t *testing.T, n *node)
		parent  string
		cause   Cause
		cure    string
	}{
		"missing": {func(*testing.T, *node) {}, "eth9", NoParent, "the node has: br-x"},
		"down": {func(t *testing.T, n *node) {
			if err := n.host.Links().LinkSetDown(n.host.Link(t, "prov0")); err != nil {
				t.Fatal(err)
			}
		}, "prov0", ParentDown, "ip link set prov0 up"},
		"not Ethernet": {func(*testing.T, *node) {}, "lo", NotEthernet, "provisioning network"},
		"bridge port": {func(t *testing.T, n *node) {
			if err := n.host.Links().LinkSetMaster(n.host.Link(t, "prov0"), n.host.Link(t, "br-x")); err != nil {
				t.Fatal(err)
			}
		}, "prov0", BridgePort, "name br-x as the parent"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			add(t, n.host, &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br-x"}})
			test.prepare(t, n)
			_, err := n.open(t).Ensure(Spec{Name: "macvlan0", Parent: test.parent})
			wantCause(t, err, test.cause)
			if !strings.Contains(err.Error(), test.cure) {
				t.Errorf("got %q, want %q in it", err, test.cure)
			}
			if got := names(t, n.pod); len(got) != 1 {
				t.Errorf("got links %v in the pod, want lo only", got)
			}
		})
	}
}

// TestOwnedAndOccupied judges what this kernel cannot make.
func TestOwnedAndOccupied(t *testing.T) {
	parent := Link{Index: 5, Name: "eth0", Kind: "device"}
	masters := map[string]Cause{"bridge": BridgePort, "bond": BondSlave, "team": BondSlave, "vrf": 0}
	for kind, cause := range masters {
		fault := owned(parent, Link{Name: "master0", Kind: kind})
		if cause == 0 {
			if fault != nil {
				t.Errorf("got %v, want a member of a %s accepted", fault, kind)
			}
			continue
		}
		wantCause(t, fault, cause)
		if !strings.Contains(fault.Do, "name master0 as the parent") {
			t.Errorf("got %q, want the master named", fault.Do)
		}
	}
	child := func(kind string, lower, ns int) []Link {
		return []Link{{Index: 9, Name: "child0", Kind: kind, lower: lower, lowerNS: ns}}
	}
	layer3 := child("ipvlan", 5, -1)
	layer3[0].layer3 = true
	tests := map[string]struct {
		links []Link
		kind  Kind
		want  bool
	}{
		"macvlan beside macvlan":            {child("macvlan", 5, -1), Macvlan, false},
		"macvlan beside macvtap":            {child("macvtap", 5, -1), Macvlan, false},
		"macvlan beside ipvlan":             {child("ipvlan", 5, -1), Macvlan, true},
		"macvlan beside ipvtap":             {child("ipvtap", 5, -1), Macvlan, true},
		"ipvlan beside macvlan":             {child("macvlan", 5, -1), IPvlan, true},
		"ipvlan beside L3 ipvlan":           {layer3, IPvlan, true},
		"ipvlan beside ipvlan":              {child("ipvlan", 5, -1), IPvlan, false},
		"ipvlan beside VLAN":                {child("vlan", 5, -1), IPvlan, false},
		"ipvlan on another":                 {child("ipvlan", 6, -1), Macvlan, false},
		"ipvlan on another namespace's own": {child("ipvlan", 5, 0), Macvlan, false},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			fault := occupied(parent, test.kind, test.links)
			if (fault != nil) != test.want {
				t.Errorf("got %v", fault)
			}
		})
	}
}

// TestOccupiedForReal meets a macvlan on the node's interface with an ipvlan.
func TestOccupiedForReal(t *testing.T) {
	n := newNode(t)
	add(t, n.host, &netlink.Macvlan{
		LinkAttrs: netlink.LinkAttrs{Name: "shim0", ParentIndex: n.host.Link(t, "prov0").Attrs().Index},
		Mode:      netlink.MACVLAN_MODE_BRIDGE,
	})
	h := n.open(t)
	_, err := h.Plan(Spec{Name: "ipvlan0", Parent: "prov0", Kind: IPvlan})
	wantCause(t, err, OtherKind)
	if !strings.Contains(err.Error(), "ip link del shim0") {
		t.Errorf("got %q, want the culprit named", err)
	}
	if _, err := h.Ensure(Spec{Name: "macvlan0", Parent: "prov0"}); err != nil {
		t.Errorf("got %v, want a macvlan beside a macvlan", err)
	}
}

// TestVLANParent listens on a VLAN's interface.
func TestVLANParent(t *testing.T) {
	n := newNode(t)
	vlan := &netlink.Vlan{
		LinkAttrs: netlink.LinkAttrs{Name: "prov0.20", ParentIndex: n.host.Link(t, "prov0").Attrs().Index}, VlanId: 20,
	}
	if err := n.host.Links().LinkAdd(vlan); err != nil {
		if errno, _ := asErrno(err); errno == unix.EOPNOTSUPP {
			t.Skip("needs a kernel with 802.1Q VLANs: test/e2e/kernels runs this on such, and TestTaggedParent hears " +
				"machines there")
		}
		t.Fatal(err)
	}
	if err := n.host.Links().LinkSetUp(vlan); err != nil {
		t.Fatal(err)
	}
	got, err := n.open(t).Ensure(Spec{Name: "macvlan0", Parent: "prov0.20"})
	if err != nil || got.Parent.Name != "prov0.20" {
		t.Errorf("got %+v, %v; want a listener on prov0.20", got, err)
	}
}
