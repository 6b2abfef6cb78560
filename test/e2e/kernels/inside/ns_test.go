package inside

import (
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/test/e2e/network"
)

// ns is a network namespace of a test.
type ns struct {
	handle netns.NsHandle
	links  *netlink.Handle
}

func newNS(t *testing.T) *ns {
	t.Helper()
	handle, err := network.New()
	if err != nil {
		t.Fatal(err)
	}
	links, err := netlink.NewHandleAt(handle, unix.NETLINK_ROUTE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		links.Close()
		_ = handle.Close()
	})
	n := &ns{handle, links}
	n.do(t, func() error { // link-local addresses can be used at once
		return os.WriteFile("/proc/sys/net/ipv6/conf/default/accept_dad", []byte("0"), 0)
	})
	n.raise(t, "lo")
	return n
}

// try runs f inside.
func (n *ns) try(f func() error) error { return network.Do(n.handle, f) }

func (n *ns) do(t *testing.T, f func() error) {
	t.Helper()
	if err := n.try(f); err != nil {
		t.Fatal(err)
	}
}

func (n *ns) link(t *testing.T, name string) netlink.Link {
	t.Helper()
	link, err := n.links.LinkByName(name)
	if err != nil {
		t.Fatalf("failed to find %s: %v", name, err)
	}
	return link
}

// add makes a link and brings it up.
func (n *ns) add(t *testing.T, made netlink.Link) netlink.Link {
	t.Helper()
	name := made.Attrs().Name
	if err := n.links.LinkAdd(made); err != nil {
		t.Fatalf("failed to make %s: %v", name, err)
	}
	n.raise(t, name)
	return n.link(t, name)
}

// raise brings a link up, with addresses.
func (n *ns) raise(t *testing.T, name string, addresses ...string) {
	t.Helper()
	if err := network.Raise(n.handle, name, addresses...); err != nil {
		t.Fatal(err)
	}
}

func (n *ns) lower(t *testing.T, name string) {
	t.Helper()
	if err := n.links.LinkSetDown(n.link(t, name)); err != nil {
		t.Fatalf("failed to take %s down: %v", name, err)
	}
}

// put makes a link a port of a bridge or a member of a bond.
func (n *ns) put(t *testing.T, name string, master netlink.Link) {
	t.Helper()
	if err := n.links.LinkSetMaster(n.link(t, name), master); err != nil {
		t.Fatalf("failed to make %s a part of %s: %v", name, master.Attrs().Name, err)
	}
}

// vlan adds a VLAN's interface, such as nic0.20, to a link.
func (n *ns) vlan(t *testing.T, on string, id int, protocol netlink.VlanProtocol) (name string) {
	t.Helper()
	name = fmt.Sprintf("%s.%d", on, id)
	n.add(t, &netlink.Vlan{
		LinkAttrs: netlink.LinkAttrs{Name: name, ParentIndex: n.link(t, on).Attrs().Index},
		VlanId:    id, VlanProtocol: protocol,
	})
	return name
}

// join makes a cable between two namespaces.
func join(t *testing.T, a *ns, nameA string, b *ns, nameB string) {
	t.Helper()
	if err := network.Join(a.handle, nameA, b.handle, nameB); err != nil {
		t.Fatal(err)
	}
	a.raise(t, nameA)
	b.raise(t, nameB)
}

// pause is the time between two looks.
func pause() { time.Sleep(10 * time.Millisecond) }

// until waits until ok is true.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	succeeds(t, what, func() error {
		if !ok() {
			return errors.New("not yet")
		}
		return nil
	})
}

// succeeds waits until try does.
func succeeds(t *testing.T, what string, try func() error) {
	t.Helper()
	const long = 30 * time.Second // in an emulator
	var err error
	for end := time.Now().Add(long); time.Now().Before(end); pause() {
		if err = try(); err == nil {
			return
		}
	}
	t.Fatalf("waited %s in vain: %s: %v", long, what, err)
}
