package inside

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/vishvananda/netlink"
)

// A macvlan as the parent: the listener is made on the interface below it.
func TestMacvlanOnMacvlan(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.node.add(t, &netlink.Macvlan{
		LinkAttrs: netlink.LinkAttrs{Name: "shim0", ParentIndex: s.node.link(t, "nic0").Attrs().Index},
		Mode:      netlink.MACVLAN_MODE_BRIDGE,
	})
	s.listen(t, "macvlan", "shim0")
	if err := s.lease(t, "lan0", false); err != nil {
		t.Error(err)
	}
	status, lines := s.init(t,
		"BROADCAST_INIT_PARENT=nic0", "BROADCAST_INIT_KIND=ipvlan", "BROADCAST_INIT_LISTENER=other0")
	if status != 1 || lines[len(lines)-1]["cause"] != "other_kind" {
		t.Errorf("an ipvlan beside it: status %d, %v", status, lines)
	}
}

// A network that loses, doubles and reorders: machines get their addresses all the same, and the server stays up.
func TestBadNetwork(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	for _, end := range []struct {
		ns   *ns
		name string
	}{{s.lan, "lan0"}, {s.node, "nic0"}} {
		if err := end.ns.links.QdiscAdd(netlink.NewNetem(
			netlink.QdiscAttrs{
				LinkIndex: end.ns.link(t, end.name).Attrs().Index, Parent: netlink.HANDLE_ROOT,
				Handle: netlink.MakeHandle(1, 0),
			},
			netlink.NetemQdiscAttrs{Loss: 20, Duplicate: 10, Latency: 20_000, Jitter: 15_000, ReorderProb: 25},
		)); err != nil {
			t.Fatal(err)
		}
	}
	s.listen(t, "macvlan", "nic0")
	const machines, most = 20, 2
	var failed atomic.Int64
	var done sync.WaitGroup
	for i := range machines {
		name := fmt.Sprintf("m%d", i)
		s.lan.add(t, &netlink.Macvlan{
			LinkAttrs: netlink.LinkAttrs{Name: name, ParentIndex: s.lan.link(t, "lan0").Attrs().Index},
			Mode:      netlink.MACVLAN_MODE_VEPA,
		})
		done.Go(func() {
			if err := s.lease(t, name, false); err != nil {
				failed.Add(1)
				t.Log(err)
			}
		})
	}
	done.Wait()
	if n := failed.Load(); n > most {
		t.Errorf("%d of %d machines got no address", n, machines)
	}
	if up := s.metric(t, `dhcp_relay_server_up{server="`+serverAddr+`"}`); up != 1 {
		t.Errorf("dhcp_relay_server_up is %v", up)
	}
}

// A parent that loses its link again and again is heard again each time; one that is removed and made anew is, where
// broadcast-init watches.
func TestParentComesAndGoes(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	parent, machine := s.node.vlan(t, "nic0", 20, ctag), s.lan.vlan(t, "lan0", 20, ctag)
	env := s.initEnv(t, []string{"BROADCAST_INIT_WATCH=true", "BROADCAST_INIT_PARENT=" + parent})
	s.start(t, "broadcast-init", env...)
	s.relay(t)
	for range 10 {
		s.lan.lower(t, "lan0")
		pause()
		s.lan.raise(t, "lan0")
		s.keepsAsking(t, machine, "after its link came back")
	}
	if err := s.node.links.LinkDel(s.node.link(t, parent)); err != nil {
		t.Fatal(err)
	}
	until(t, "the relay is not ready", func() bool { return s.ready(t) != nil })
	s.node.vlan(t, "nic0", 20, ctag)
	succeeds(t, "the relay is ready again", func() error { return s.ready(t) })
	s.keepsAsking(t, machine, "after the parent was made anew")
}
