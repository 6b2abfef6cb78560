package hostlink

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/internal/nstest"
)

// The tests of this file are named after what users of the former relay's script reported, and after its defects.

// TestComplaint_charts110_CrashLoop: an interface of the listener's name on the node made the init container fail
// for ever.
func TestComplaint_charts110_CrashLoop(t *testing.T) {
	n := newNode(t)
	add(t, n.host, &netlink.Macvlan{
		LinkAttrs: netlink.LinkAttrs{Name: "macvlan0", ParentIndex: n.host.Link(t, "prov0").Attrs().Index},
		Mode:      netlink.MACVLAN_MODE_BRIDGE,
	})
	h := n.open(t)
	for run := range 3 {
		if _, err := h.Ensure(Spec{Name: "macvlan0", Parent: "prov0"}); err != nil {
			t.Fatalf("run %d: %v", run, err)
		}
	}
	n.host.Link(t, "macvlan0") // not ours, and not touched
}

// TestComplaint_charts112_KindChangedInRollingUpdate: the old pod's macvlan is still there when the new pod wants an
// ipvlan. The kernel's EBUSY is explained, and waited out.
func TestComplaint_charts112_KindChangedInRollingUpdate(t *testing.T) {
	err := refused(unix.EBUSY, Spec{Name: "ipvlan0", Kind: IPvlan}, Link{Name: "eth1"})
	wantCause(t, err, OtherKind)
	if !OtherKind.Passing() || !strings.Contains(err.Error(), "Recreate") {
		t.Errorf("got %v, want it waited for, and the strategy named", err)
	}
}

// TestKindThatCannotBeKeepsTheListener: the kernel lacks the kind, or another pod's interface on the parent refuses it. The
// listener that works stays, or is made again with its MAC address.
func TestKindThatCannotBeKeepsTheListener(t *testing.T) {
	n := newNode(t)
	h := n.open(t)
	made, err := h.Ensure(Spec{Name: "macvlan0", Parent: "prov0"})
	if err != nil {
		t.Fatal(err)
	}
	for _, others := range []string{"", "another0"} {
		if others != "" {
			add(t, n.host, &netlink.Macvlan{
				LinkAttrs: netlink.LinkAttrs{Name: others, ParentIndex: n.host.Link(t, "prov0").Attrs().Index},
				Mode:      netlink.MACVLAN_MODE_BRIDGE,
			})
		}
		got, err := h.Ensure(Spec{Name: "macvlan0", Parent: "prov0", Kind: IPvlan})
		if err == nil && others == "" && got.Kind == IPvlan {
			if made, err = h.Ensure(Spec{Name: "macvlan0", Parent: "prov0"}); err != nil { // this kernel has it
				t.Fatal(err)
			}
			continue
		}
		if fault, ok := errors.AsType[*Fault](err); !ok || fault.Cause != NoKind && fault.Cause != OtherKind {
			t.Errorf("got %v, want the kind refused", err)
		}
		link := n.pod.Link(t, "macvlan0")
		mac := link.Attrs().HardwareAddr.String()
		if link.Type() != "macvlan" || mac != made.MAC.String() || link.Attrs().RawFlags&unix.IFF_UP == 0 {
			t.Errorf("left %s %+v, want the macvlan up with %s", link.Type(), link.Attrs(), made.MAC)
		}
	}
}

// TestComplaint_charts88_MACDropped: where foreign MAC addresses are dropped, an ipvlan has none.
func TestComplaint_charts88_MACDropped(t *testing.T) {
	n := newNode(t)
	got, err := n.open(t).Ensure(Spec{Name: "ipvlan0", Parent: "prov0", Kind: IPvlan})
	if fault, ok := errors.AsType[*Fault](err); ok && fault.Cause == NoKind {
		if !strings.Contains(fault.Do, "module ipvlan") {
			t.Errorf("got %q, want the module named", fault.Do)
		}
		t.Skip("needs a kernel with ipvlan; its refusal was explained, and TestNewListenerMessage checks the request")
	}
	if err != nil {
		t.Fatal(err)
	}
	if parent := n.host.Link(t, "prov0").Attrs(); got.MAC.String() != parent.HardwareAddr.String() {
		t.Errorf("got %s, want the parent's %s", got.MAC, parent.HardwareAddr)
	}
	link, ok := n.pod.Link(t, "ipvlan0").(*netlink.IPVlan)
	if !ok || link.Mode != netlink.IPVLAN_MODE_L2 {
		t.Errorf("got %+v, want an ipvlan in L2 mode", link)
	}
}

// TestComplaint_charts87_RandomName: the listener has the name it was given, whatever was there before.
func TestComplaint_charts87_RandomName(t *testing.T) {
	n := newNode(t)
	for range 2 {
		if _, err := n.open(t).Ensure(Spec{Name: "macvlan0", Parent: "prov0"}); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]string{"lo", "macvlan0"}, names(t, n.pod)); diff != "" {
			t.Errorf("links of the pod differ (-want +got):\n%s", diff)
		}
	}
}

// TestComplaint_tinkerbell261_SourceInterfaceIgnored, also eks-anywhere#9035 and #10421: the parent that was named is
// the parent, whatever the default route says; and which one it is, and why, can be told.
func TestComplaint_tinkerbell261_SourceInterfaceIgnored(t *testing.T) {
	n := newNode(t)
	nstest.Veth(t, n.host, "mgmt0", n.lan, "lan1")
	n.host.Addr(t, "mgmt0", "198.51.100.10/24")
	n.host.Route(t, "default", "198.51.100.1")
	h := n.open(t)
	for selector, want := range map[string]string{"prov0": "prov0", "": "mgmt0"} {
		got, err := h.Ensure(Spec{Name: "macvlan0", Parent: selector})
		if err != nil {
			t.Fatal(err)
		}
		index := n.host.Link(t, want).Attrs().Index
		if got.Parent.Name != want || got.Parent.Chosen == "" || n.pod.Link(t, "macvlan0").Attrs().ParentIndex != index {
			t.Errorf("got %+v, want it on %s", got, want)
		}
	}
}

// TestDefect_SourceAddress: the script gave its interface 127.1.1.1/32, and replies left from there.
func TestDefect_SourceAddress(t *testing.T) {
	n := newNode(t)
	n.lan.Addr(t, "lan0", "192.0.2.9/24")
	h := n.open(t)
	listener, err := h.Ensure(Spec{Name: "macvlan0", Parent: "prov0"})
	if err != nil {
		t.Fatal(err)
	}
	n.hears(t, h, listener)
	addresses, err := n.pod.Links().AddrList(n.pod.Link(t, "macvlan0"), netlink.FAMILY_ALL)
	if err != nil || len(addresses) != 0 {
		t.Errorf("got addresses %v (%v), want none", addresses, err)
	}
}

// TestDefect_InterfaceLeftOnNode: a failure half-way left an interface on the node.
func TestDefect_InterfaceLeftOnNode(t *testing.T) {
	n := newNode(t)
	h := n.open(t)
	plan, err := h.Plan(Spec{Name: "macvlan0", Parent: "prov0"})
	if err != nil {
		t.Fatal(err)
	}
	plan.Spec.Name = "a/b" // which the kernel refuses when all but the name is done
	if _, err := h.apply(plan); err == nil {
		t.Fatal("got no failure")
	}
	if diff := cmp.Diff([]string{"lo"}, names(t, n.pod)); diff != "" {
		t.Errorf("links of the pod differ (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"lo", "prov0"}, names(t, n.host)); diff != "" {
		t.Errorf("links of the node differ (-want +got):\n%s", diff)
	}
}
