package hostlink

import (
	"errors"
	"net"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/internal/nstest"
)

func TestEnsureMakesListener(t *testing.T) {
	n := newNode(t)
	if err := n.host.Links().LinkSetMTU(n.host.Link(t, "prov0"), 1400); err != nil {
		t.Fatal(err)
	}
	h := n.open(t)
	got, err := h.Ensure(Spec{Name: "macvlan0", Parent: "prov0"})
	if err != nil {
		t.Fatal(err)
	}
	link := n.pod.Link(t, "macvlan0")
	attrs := link.Attrs()
	macvlan, ok := link.(*netlink.Macvlan)
	if !ok || macvlan.Mode != netlink.MACVLAN_MODE_BRIDGE {
		t.Errorf("got %T %+v, want a macvlan in bridge mode", link, link)
	}
	if attrs.RawFlags&unix.IFF_UP == 0 || attrs.RawFlags&unix.IFF_NOARP == 0 {
		t.Errorf("got flags %#x, want up and without ARP", attrs.RawFlags)
	}
	if got.MTU != 1400 || attrs.MTU != 1400 {
		t.Errorf("got MTU %d (reported %d), want the parent's 1400", attrs.MTU, got.MTU)
	}
	if parent := n.host.Link(t, "prov0").Attrs(); attrs.ParentIndex != parent.Index {
		t.Errorf("got parent %d, want %d", attrs.ParentIndex, parent.Index)
	}
	if got.Action != Create || got.Parent.Chosen != "name" || !slices.Equal(got.MAC, attrs.HardwareAddr) {
		t.Errorf("got %+v", got)
	}
	addresses, err := n.pod.Links().AddrList(link, netlink.FAMILY_ALL)
	if err != nil || len(addresses) != 0 {
		t.Errorf("got addresses %v (%v), want none", addresses, err)
	}
	if diff := cmp.Diff([]string{"lo", "prov0"}, names(t, n.host)); diff != "" {
		t.Errorf("links of the node differ (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"lo", "macvlan0"}, names(t, n.pod)); diff != "" {
		t.Errorf("links of the pod differ (-want +got):\n%s", diff)
	}
}

// TestListenerReceives sends a broadcast on the machine's end and receives it on a packet socket of the pod, whose
// listener has no address.
func TestListenerReceives(t *testing.T) {
	n := newNode(t)
	n.lan.Addr(t, "lan0", "192.0.2.9/24")
	if _, err := n.open(t).Ensure(Spec{Name: "macvlan0", Parent: "prov0"}); err != nil {
		t.Fatal(err)
	}
	index := n.pod.Link(t, "macvlan0").Attrs().Index
	var fd int
	n.pod.Do(t, func() (err error) {
		ip := htons(unix.ETH_P_IP)
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM, int(ip)); err != nil {
			return err
		}
		if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 5}); err != nil {
			return err
		}
		return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: ip, Ifindex: index})
	})
	defer unix.Close(fd)
	broadcast(t, n.lan, "hello")
	buf := make([]byte, 2048)
	got, _, err := unix.Recvfrom(fd, buf, 0)
	if err != nil {
		t.Fatal(err)
	}
	if text := string(buf[28:got]); text != "hello" {
		t.Errorf("got %q, want hello", text)
	}
}

func htons(v uint16) uint16 { return v<<8 | v>>8 }

// broadcast sends a datagram to port 67 of everybody.
func broadcast(t *testing.T, ns *nstest.NS, text string) {
	t.Helper()
	broadcastTo(t, ns, 67, text)
}

func broadcastTo(t *testing.T, ns *nstest.NS, port int, text string) {
	t.Helper()
	ns.Do(t, func() error {
		conn, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(192, 0, 2, 9), Port: 68})
		if err != nil {
			return err
		}
		defer conn.Close()
		_, err = conn.WriteToUDP([]byte(text), &net.UDPAddr{IP: net.IPv4(192, 0, 2, 255), Port: port})
		return err
	})
}

func TestEnsureIsIdempotent(t *testing.T) {
	n := newNode(t)
	spec := Spec{Name: "macvlan0", Parent: "prov0"}
	first, err := n.open(t).Ensure(spec)
	if err != nil {
		t.Fatal(err)
	}
	before := n.pod.Link(t, "macvlan0").Attrs()
	if err := n.pod.Links().LinkSetDown(n.pod.Link(t, "macvlan0")); err != nil {
		t.Fatal(err)
	}
	if err := n.host.Links().LinkSetMTU(n.host.Link(t, "prov0"), 1300); err != nil {
		t.Fatal(err)
	}
	second, err := n.open(t).Ensure(spec) // as a restarted container does
	if err != nil {
		t.Fatal(err)
	}
	after := n.pod.Link(t, "macvlan0").Attrs()
	if before.Index != after.Index || !slices.Equal(first.MAC, second.MAC) {
		t.Errorf("got another listener: index %d, then %d", before.Index, after.Index)
	}
	if second.Action != Keep || after.MTU != 1300 || after.RawFlags&unix.IFF_UP == 0 {
		t.Errorf("got %+v, %+v; want it kept, up, with MTU 1300", second, after)
	}
}

func TestEnsureReplaces(t *testing.T) {
	tests := map[string]func(t *testing.T, n *node, index int) netlink.Link{
		"wrong parent": func(t *testing.T, n *node, _ int) netlink.Link {
			nstest.Veth(t, n.host, "other0", n.lan, "lan1")
			return &netlink.Macvlan{
				LinkAttrs: netlink.LinkAttrs{ParentIndex: n.host.Link(t, "other0").Attrs().Index},
				Mode:      netlink.MACVLAN_MODE_BRIDGE,
			}
		},
		"wrong mode": func(_ *testing.T, _ *node, index int) netlink.Link {
			return &netlink.Macvlan{
				LinkAttrs: netlink.LinkAttrs{ParentIndex: index}, Mode: netlink.MACVLAN_MODE_PRIVATE,
			}
		},
		"wrong kind": func(*testing.T, *node, int) netlink.Link {
			return &netlink.Veth{PeerName: "peer0", PeerNamespace: nil}
		},
	}
	for name, make := range tests {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			wrong := make(t, n, n.host.Link(t, "prov0").Attrs().Index)
			wrong.Attrs().Name = "wrong0"
			from := n.host
			if _, ok := wrong.(*netlink.Veth); ok {
				from = n.pod
			}
			add(t, from, wrong)
			if from == n.host {
				if err := n.host.Links().LinkSetNsFd(wrong, n.pod.Fd()); err != nil {
					t.Fatal(err)
				}
			}
			link := n.pod.Link(t, "wrong0")
			for _, err := range []error{
				n.pod.Links().LinkSetDown(link),
				n.pod.Links().LinkSetAlias(link, mark+"an earlier version"),
				n.pod.Links().LinkSetName(link, "macvlan0"),
			} {
				if err != nil {
					t.Fatal(err)
				}
			}
			got, err := n.open(t).Ensure(Spec{Name: "macvlan0", Parent: "prov0"})
			if err != nil {
				t.Fatal(err)
			}
			if got.Action != Replace {
				t.Errorf("got action %s, want replace", got.Action)
			}
			// The kernel may give the index of what was removed to what is made next.
			if now := n.pod.Link(t, "macvlan0"); now.Attrs().Index == link.Attrs().Index && now.Type() == link.Type() {
				t.Error("got the wrong listener still")
			}
		})
	}
}

func TestEnsureKeepsForeignInterface(t *testing.T) {
	n := newNode(t)
	add(t, n.pod, &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "macvlan0"}})
	_, err := n.open(t).Ensure(Spec{Name: "macvlan0", Parent: "prov0"})
	wantCause(t, err, NameTaken)
	if kind := n.pod.Link(t, "macvlan0").Type(); kind != "bridge" {
		t.Errorf("got %s, want the bridge untouched", kind)
	}
}

func TestEnsureClearsUnfinishedListener(t *testing.T) {
	n := newNode(t)
	h := n.open(t)
	plan, err := h.Plan(Spec{Name: "macvlan0", Parent: "prov0"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.create(plan); err != nil { // and then the process is killed
		t.Fatal(err)
	}
	if _, err := n.open(t).Ensure(plan.Spec); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"lo", "macvlan0"}, names(t, n.pod)); diff != "" {
		t.Errorf("links of the pod differ (-want +got):\n%s", diff)
	}
}

// TestStableMAC checks that the address is made as asked, put right, and refused where another pod has it.
func TestStableMAC(t *testing.T) {
	mac := StableMAC("node-1", "stack-0", "macvlan0")
	if mac[0]&3 != 2 {
		t.Errorf("got %s, want a locally administered unicast address", mac)
	}
	if want := "aa:62:fa:51:f3:94"; mac.String() != want { // as every version before made it
		t.Errorf("got %s, want %s", mac, want)
	}
	if other := StableMAC("node-1", "stack-0macvlan0"); slices.Equal(mac, other) {
		t.Errorf("got %s for other names as well", mac)
	}
	n := newNode(t)
	spec := Spec{Name: "macvlan0", Parent: "prov0", MAC: mac}
	h := n.open(t)
	if got, err := h.Ensure(spec); err != nil || !slices.Equal(got.MAC, mac) {
		t.Errorf("got %s, %v; want %s", got.MAC, err, mac)
	}
	spec.MAC = StableMAC("node-2", "stack-0", "macvlan0")
	if got, err := h.Ensure(spec); err != nil || got.Action != Keep || !slices.Equal(got.MAC, spec.MAC) {
		t.Errorf("got %+v, %v; want it kept, with address %s", got, err, spec.MAC)
	}

	old := n.pod
	n.pod = nstest.New(t) // the old pod's successor
	_, err := n.open(t).Ensure(spec)
	wantCause(t, err, MACTaken)
	if diff := cmp.Diff([]string{"lo"}, names(t, n.pod)); diff != "" {
		t.Errorf("links of the pod differ after the failure (-want +got):\n%s", diff)
	}
	if err := old.Links().LinkDel(old.Link(t, "macvlan0")); err != nil {
		t.Fatal(err)
	}
	if _, err := n.open(t).Ensure(spec); err != nil {
		t.Errorf("got %v, want a listener once the old pod's is gone", err)
	}
}

func TestSeveralListeners(t *testing.T) {
	n := newNode(t)
	nstest.Veth(t, n.host, "prov1", n.lan, "lan1")
	h := n.open(t)
	for name, parent := range map[string]string{"macvlan0": "prov0", "macvlan1": "prov1"} {
		got, err := h.Ensure(Spec{Name: name, Parent: parent})
		if err != nil || got.Parent.Name != parent {
			t.Errorf("got %+v, %v; want %s on %s", got, err, name, parent)
		}
	}
	if got := len(names(t, n.pod)); got != 3 {
		t.Errorf("got %d links, want lo and two listeners", got)
	}
}

func TestCheckName(t *testing.T) {
	for name, good := range map[string]bool{
		"macvlan0": true, "a": true, "exactly15bytes_": true, "": false, "sixteen_bytes_16": false, "lo": false,
		"all": false, "a b": false, "a/b": false, "eth0:1": false, "..": false, "bi%d": false,
	} {
		if err := CheckName(name); (err == nil) != good {
			t.Errorf("got %v for %q", err, name)
		}
	}
}

// TestLinkDownUp checks that a listener outlives its parent's flaps, and comes back after its deletion.
func TestLinkDownUp(t *testing.T) {
	n := newNode(t)
	spec := Spec{Name: "macvlan0", Parent: "prov0"}
	h := n.open(t)
	first, err := h.Ensure(spec)
	if err != nil {
		t.Fatal(err)
	}
	for range 100 {
		if err := n.host.Links().LinkSetDown(n.host.Link(t, "prov0")); err != nil {
			t.Fatal(err)
		}
		_, err := h.Ensure(spec)
		wantCause(t, err, ParentDown)
		if err := n.host.Links().LinkSetUp(n.host.Link(t, "prov0")); err != nil {
			t.Fatal(err)
		}
		again, err := h.Ensure(spec)
		if err != nil {
			t.Fatal(err)
		}
		if again.Action != Keep || !slices.Equal(again.MAC, first.MAC) {
			t.Fatalf("got %+v, want the first listener kept", again)
		}
	}
	descriptors := openFiles(t)
	start := time.Now()
	for range 100 {
		if err := n.host.Links().LinkDel(n.host.Link(t, "prov0")); err != nil {
			t.Fatal(err)
		}
		_, err := h.Ensure(spec)
		wantCause(t, err, NoParent)
		nstest.Veth(t, n.host, "prov0", n.lan, "lan0")
		again, err := h.Ensure(spec)
		if err != nil {
			t.Fatal(err)
		}
		if again.Action != Create {
			t.Fatalf("got %s, want it made anew", again.Action)
		}
	}
	t.Logf("100 deletions of the parent: %s", time.Since(start))
	if now := openFiles(t); now > descriptors {
		t.Errorf("got %d open files after 100 deletions, %d before", now, descriptors)
	}
	if diff := cmp.Diff([]string{"lo", "macvlan0"}, names(t, n.pod)); diff != "" {
		t.Errorf("links of the pod differ (-want +got):\n%s", diff)
	}
}

func openFiles(t *testing.T) int {
	t.Helper()
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(files)
}

func wantCause(t *testing.T, err error, cause Cause) {
	t.Helper()
	fault, ok := errors.AsType[*Fault](err)
	if !ok {
		t.Fatalf("got error %v, want a fault of cause %s", err, cause)
	}
	if fault.Cause != cause || fault.What == "" || fault.Do == "" {
		t.Fatalf("got %s: %v, want cause %s", fault.Cause, err, cause)
	}
}
