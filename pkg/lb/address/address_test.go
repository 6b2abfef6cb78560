package address

import (
	"context"
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
	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/internal/nstest"
	"github.com/tinkerbell/stack/internal/testwait"
	"github.com/tinkerbell/stack/pkg/lb/reason"
	"github.com/tinkerbell/stack/pkg/relay/socket"
)

func TestLifetime(t *testing.T) {
	for left, want := range map[time.Duration]int{
		0: 0, time.Second: 0, 2049 * time.Millisecond: 0, 2050 * time.Millisecond: 1, 5880 * time.Millisecond: 4, -time.Hour: 0,
	} {
		if got := Lifetime(left); got != want {
			t.Errorf("%v gives %d s, want %d", left, got, want)
		}
	}
}

// on is a namespace with a link to another.
func on(t *testing.T) (*nstest.NS, *Manager) {
	t.Helper()
	ns, peer := nstest.New(t), nstest.New(t)
	nstest.Veth(t, ns, "eth0", peer, "eth0")
	ns.Addr(t, "eth0", "192.0.2.1/24")
	ns.Addr(t, "eth0", "2001:db8::1/64")
	return ns, NewAt(ns.Links())
}

// gone waits until the kernel has taken an address away.
func gone(t *testing.T, m *Manager, ip netip.Addr, atMost time.Duration) {
	t.Helper()
	start := time.Now()
	for time.Since(start) < atMost {
		if has, err := m.Has(ip); err != nil {
			t.Fatal(err)
		} else if !has {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("%s is still there after %v", ip, atMost)
}

// The kernel takes an address away that nobody prolongs, not later than it was put for, whatever else it counts.
func TestKernelTakesTheAddressAway(t *testing.T) {
	_, m := on(t)
	for _, text := range []string{"192.0.2.10", "2001:db8::10"} {
		t.Run(text, func(t *testing.T) {
			t.Parallel()
			ip := netip.MustParseAddr(text)
			link, err := m.Find(ip, "")
			if err != nil || link.Name != "eth0" {
				t.Fatalf("found %+v, %v", link, err)
			}
			const left = 3 * time.Second
			if err := m.Put(link, ip, time.Now().Add(left)); err != nil {
				t.Fatal(err)
			}
			time.Sleep(500 * time.Millisecond)
			start := time.Now()
			if err := m.Put(link, ip, time.Now().Add(left)); err != nil { // prolonged
				t.Fatal(err)
			}
			gone(t, m, ip, 2*left)
			total := time.Since(start)
			if total > left {
				t.Errorf("the address was there for %v, longer than %v", total, left)
			}
			if total < time.Second-10*time.Millisecond { // the kernel counts ticks
				t.Errorf("it was gone after %v already", total)
			}
		})
	}
}

// An address whose end has come is ours until the kernel has taken it away: one that was not found could not be removed, and
// its lease would be released while it is still there.
func TestAddressIsOursToTheLast(t *testing.T) {
	_, m := on(t)
	for _, text := range []string{"192.0.2.10", "2001:db8::10"} {
		ip := netip.MustParseAddr(text)
		link, err := m.Find(ip, "")
		if err != nil {
			t.Fatal(err)
		}
		if err := m.Put(link, ip, time.Now().Add(KernelDelay+1100*time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		seen := 0
		for there := true; there; time.Sleep(5 * time.Millisecond) {
			entries, err := m.list()
			if err != nil {
				t.Fatal(err)
			}
			i := slices.IndexFunc(entries, func(e entry) bool { return e.prefix.Addr() == ip })
			if there = i >= 0; there && !entries[i].ours {
				t.Fatalf("after %d looks %s is somebody else's", seen, ip)
			}
			seen++
		}
		if seen < 2 {
			t.Errorf("%s was never there", ip)
		}
	}
}

// Many addresses whose ends are a moment apart: the kernel looks at most once a second, and is never later than that.
func TestKernelIsLateByASecondAtMost(t *testing.T) {
	_, m := on(t)
	link, err := m.Find(netip.MustParseAddr("192.0.2.10"), "")
	if err != nil {
		t.Fatal(err)
	}
	ends := map[netip.Addr]time.Time{}
	for i := range byte(12) {
		ip := netip.AddrFrom4([4]byte{192, 0, 2, 20 + i})
		ends[ip] = time.Now().Add(2060 * time.Millisecond)
		if err := m.Put(link, ip, ends[ip]); err != nil {
			t.Fatal(err)
		}
		time.Sleep(70 * time.Millisecond)
	}
	for deadline := time.Now().Add(5 * time.Second); len(ends) > 0 && time.Now().Before(deadline); {
		for ip, end := range ends {
			if has, err := m.Has(ip); err != nil || !has {
				if late := time.Since(end); late > 50*time.Millisecond {
					t.Errorf("%s was there until %v after its end", ip, late)
				}
				delete(ends, ip)
			}
		}
		time.Sleep(5 * time.Millisecond)
	}
	if len(ends) > 0 {
		t.Errorf("still there: %v", ends)
	}
}

// The address is never the node's own: behind the others, deprecated, and without a route of its own.
func TestAddressIsNotTheNodesOwn(t *testing.T) {
	ns, m := on(t)
	for _, text := range []string{"192.0.2.10", "2001:db8::10"} {
		ip := netip.MustParseAddr(text)
		link, err := m.Find(ip, "eth0")
		if err != nil {
			t.Fatal(err)
		}
		if err := m.Put(link, ip, time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		all, err := ns.Links().AddrList(ns.Link(t, "eth0"), netlink.FAMILY_ALL)
		if err != nil {
			t.Fatal(err)
		}
		index := slices.IndexFunc(all, func(a netlink.Addr) bool { return a.IP.String() == text })
		if index < 0 {
			t.Fatalf("%s is not among %v", ip, all)
		}
		if all[index].Flags&unix.IFA_F_DEPRECATED == 0 || all[index].Flags&unix.IFA_F_TENTATIVE != 0 {
			t.Errorf("%s has flags %#x", ip, all[index].Flags)
		}
		if ip.Is4() && index == 0 {
			t.Errorf("%s is the first address", ip)
		}
		if has, err := m.Has(ip); err != nil || !has {
			t.Errorf("%s is not found again: %v", ip, err)
		}
		for range 2 { // a second time finds nothing
			if _, err := m.Remove(ip); err != nil {
				t.Fatal(err)
			}
		}
		if has, _ := m.Has(ip); has {
			t.Errorf("%s is still there", ip)
		}
	}
}

func TestLinksThatCannotHaveTheAddress(t *testing.T) {
	tests := map[string]struct {
		prepare  func(*testing.T, *nstest.NS)
		ip, name string
		want     reason.Reason
	}{
		"no network": {ip: "198.51.100.1", want: reason.NoLink},
		"broadcast":  {ip: "192.0.2.255", want: reason.BadAddress},
		"network":    {ip: "192.0.2.0", want: reason.BadAddress},
		"any router": {ip: "2001:db8:7::", want: reason.BadAddress, prepare: func(t *testing.T, ns *nstest.NS) {
			ns.Addr(t, "eth0", "2001:db8:7::1/64")
		}},
		"no such link":   {ip: "192.0.2.10", name: "eth7", want: reason.LinkMissing},
		"loopback":       {ip: "192.0.2.10", name: "lo", want: reason.NoLink},
		"the node's own": {ip: "192.0.2.1", want: reason.NodeAddress},
		"on a link of kube-proxy": {ip: "192.0.2.10", want: reason.NodeAddress, prepare: func(t *testing.T, ns *nstest.NS) {
			ns.Addr(t, "lo", "192.0.2.10/32")
		}},
		"link down": {ip: "192.0.2.10", want: reason.LinkDown, prepare: func(t *testing.T, ns *nstest.NS) {
			if err := ns.Links().LinkSetDown(ns.Link(t, "eth0")); err != nil {
				t.Fatal(err)
			}
		}},
		"no address on a link without ARP": {ip: "198.51.100.9", want: reason.NoLink, prepare: func(t *testing.T, ns *nstest.NS) {
			mute(t, ns, "kube-ipvs0", "198.51.100.1/24")
		}},
		"an address of IPVS for which the link answers": {
			ip: "192.0.2.10", want: reason.NodeAddress, prepare: func(t *testing.T, ns *nstest.NS) {
				mute(t, ns, "kube-ipvs0", "192.0.2.10/32")
			},
		},
		"first address": {ip: "192.0.2.10", name: "eth1", want: reason.FirstAddress, prepare: func(t *testing.T, ns *nstest.NS) {
			nstest.Veth(t, ns, "eth1", nstest.New(t), "eth0")
		}},
		"no carrier": {ip: "198.51.100.9", want: reason.LinkDown, prepare: func(t *testing.T, ns *nstest.NS) {
			peer := nstest.New(t)
			nstest.Veth(t, ns, "eth1", peer, "eth0")
			ns.Addr(t, "eth1", "198.51.100.1/24")
			if err := peer.Links().LinkSetDown(peer.Link(t, "eth0")); err != nil {
				t.Fatal(err)
			}
		}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			ns, m := on(t)
			if test.prepare != nil {
				test.prepare(t, ns)
			}
			var err error
			ns.Do(t, func() error { // its sysctls
				_, err = m.Find(netip.MustParseAddr(test.ip), test.name)
				return nil
			})
			fault, ok := errors.AsType[*reason.Error](err)
			if !ok || fault.Reason != test.want {
				t.Errorf("got %v, want %s", err, test.want)
			}
		})
	}
}

func TestAddressesOfOthersStay(t *testing.T) {
	ns, m := on(t)
	ip := netip.MustParseAddr("192.0.2.10")
	ns.Addr(t, "eth0", "192.0.2.10/32")
	if found, err := m.Remove(ip); err != nil || found {
		t.Errorf("removed an address that somebody else has put there: %v", err)
	}
	if has, err := m.Has(ip); err != nil || !has {
		t.Errorf("does not see that the node has it still: %v", err)
	}
	if _, err := m.Find(ip, ""); err == nil {
		t.Error("found a link for an address that the node has")
	}
	if err := m.Put(Link{Index: 1}, ip, time.Now().Add(time.Second)); !errors.Is(err, ErrTooLate) {
		t.Errorf("got %v, want %v", err, ErrTooLate)
	}
}

// mute makes a link that does not speak ARP, as dummy links do not, of which not every kernel has the module.
func mute(t *testing.T, ns *nstest.NS, name, address string) {
	t.Helper()
	nstest.Veth(t, ns, name, nstest.New(t), "eth0")
	if err := ns.Links().LinkSetARPOff(ns.Link(t, name)); err != nil {
		t.Fatal(err)
	}
	ns.Addr(t, name, address)
}

// kube-proxy in IPVS mode has each address on kube-ipvs0 of every node. With strictARP only the node answers for it that
// has it on a link which speaks ARP, and it can be put there.
func TestAddressBesideIPVS(t *testing.T) {
	ns, m := on(t)
	ip := netip.MustParseAddr("192.0.2.10")
	mute(t, ns, "kube-ipvs0", "192.0.2.10/32")
	ns.Do(t, func() error {
		if err := os.WriteFile("/proc/sys/net/ipv4/conf/all/arp_ignore", []byte("1"), 0); err != nil {
			return err
		}
		link, err := m.Find(ip, "")
		if err != nil {
			return err
		}
		return m.Put(link, ip, time.Now().Add(time.Minute))
	})
	if has, err := m.Has(ip); err != nil || !has {
		t.Errorf("it is not there: %v", err)
	}
	if found, err := m.Remove(ip); err != nil || !found {
		t.Errorf("removed %v, %v", found, err)
	}
	if has, err := m.Has(ip); err != nil || has {
		t.Errorf("the node still answers for it, on kube-ipvs0: %v", err)
	}
}

// Of two links in one network that which carries is taken, and both are this node's stations.
func TestTwoCardsInOneNetwork(t *testing.T) {
	ns, peer := nstest.New(t), nstest.New(t)
	var stations []string
	for i, name := range []string{"eth0", "eth1"} {
		nstest.Veth(t, ns, name, peer, name)
		ns.Addr(t, name, fmt.Sprintf("192.0.2.%d/24", i+1))
		stations = append(stations, ns.Link(t, name).Attrs().HardwareAddr.String())
	}
	m, ip := NewAt(ns.Links()), netip.MustParseAddr("192.0.2.10")
	link, err := m.Find(ip, "")
	if err != nil || link.Name != "eth0" || link.Stations != strings.Join(stations, ",") ||
		link.Source != netip.MustParseAddr("192.0.2.1") {
		t.Errorf("found %+v, %v", link, err)
	}
	if err := peer.Links().LinkSetDown(peer.Link(t, "eth0")); err != nil {
		t.Fatal(err)
	}
	testwait.Success(t, "the other link is taken", func() error {
		m.Changed()
		if link, err = m.Find(ip, ""); err != nil || link.Name != "eth1" {
			return fmt.Errorf("found %+v, %w", link, err)
		}
		return nil
	})
	if err := m.Put(link, ip, time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if err := peer.Links().LinkSetUp(peer.Link(t, "eth0")); err != nil {
		t.Fatal(err)
	}
	testwait.Success(t, "the first link carries again", func() error {
		m.Changed()
		if first, err := m.Find(ip, "eth0"); err != nil {
			return fmt.Errorf("found %+v, %w", first, err)
		}
		return nil
	})
	if link, err := m.Find(ip, ""); err != nil || link.Name != "eth1" {
		t.Errorf("the address goes back to %s, %v", link.Name, err)
	}
}

// The stations of a link that this node has had to do with are known: its router, which it need not have asked yet, and
// some of those that have answered.
func TestNeighbours(t *testing.T) {
	ns, m := on(t)
	for i, state := range []int{
		netlink.NUD_FAILED, netlink.NUD_STALE, netlink.NUD_REACHABLE, netlink.NUD_NOARP, netlink.NUD_INCOMPLETE,
	} {
		station := &netlink.Neigh{
			LinkIndex: ns.Link(t, "eth0").Attrs().Index, State: state, IP: net.IPv4(192, 0, 2, byte(20+i)),
			HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, byte(i)},
		}
		if err := ns.Links().NeighSet(station); err != nil {
			t.Fatal(err)
		}
	}
	link := Link{Index: ns.Link(t, "eth0").Attrs().Index, Name: "eth0"}
	got, err := m.Neighbours(link, netip.MustParseAddr("192.0.2.10"))
	want := []netip.Addr{netip.MustParseAddr("192.0.2.22"), netip.MustParseAddr("192.0.2.21")}
	if !slices.Equal(got, want) || err != nil {
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
	if got, err = m.Neighbours(link, want[0]); !slices.Equal(got, want[1:]) || err != nil {
		t.Errorf("an address is its own neighbour: %v, %v", got, err)
	}
	router := netip.MustParseAddr("192.0.2.99")
	if err := ns.Links().RouteAdd(&netlink.Route{LinkIndex: link.Index, Gw: router.AsSlice()}); err != nil {
		t.Fatal(err)
	}
	for i := range 2 * maxNeighbours {
		station := &netlink.Neigh{
			LinkIndex: link.Index, State: netlink.NUD_STALE, IP: net.IPv4(192, 0, 2, byte(40+i)),
			HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 1, byte(i)},
		}
		if err := ns.Links().NeighSet(station); err != nil {
			t.Fatal(err)
		}
	}
	got, err = m.Neighbours(link, netip.MustParseAddr("192.0.2.10"))
	if err != nil || len(got) != maxNeighbours || got[0] != router || got[1] != want[0] {
		t.Errorf("got %v, %v, want %v and %v first", got, err, router, want[0])
	}
}

// Putting an address again tells the tasks of the others nothing; anything else does.
func TestEventsOfOwnAddressesAreNotForeign(t *testing.T) {
	ns, m := on(t)
	events := make(chan bool, 100)
	ctx, stop := context.WithCancel(t.Context())
	var following sync.WaitGroup
	ready := make(chan struct{})
	following.Go(func() {
		ns.Do(t, func() error {
			close(ready)
			return socket.WatchLinks(ctx, func(b []byte) { events <- Foreign(b) })
		})
	})
	defer following.Wait()
	defer stop()
	<-ready
	next := func() (foreign bool) {
		t.Helper()
		testwait.Until(t, "an event", func() bool {
			select {
			case foreign = <-events:
				return true
			default:
				return false
			}
		})
		return foreign
	}
	testwait.Until(t, "the first event", func() bool { // it listens
		if err := ns.Links().LinkSetDown(ns.Link(t, "lo")); err != nil {
			t.Fatal(err)
		}
		if err := ns.Links().LinkSetUp(ns.Link(t, "lo")); err != nil {
			t.Fatal(err)
		}
		return len(events) > 0
	})
	for time.Sleep(50 * time.Millisecond); len(events) > 0; {
		if !next() {
			t.Error("a link's event is not foreign")
		}
	}
	for _, text := range []string{"192.0.2.10", "2001:db8::10"} {
		ip := netip.MustParseAddr(text)
		if err := m.Put(Link{Index: ns.Link(t, "eth0").Attrs().Index}, ip, time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		if next() {
			t.Errorf("the event of %s is foreign", ip)
		}
	}
	ns.Addr(t, "eth0", "192.0.2.77/24")
	if !next() {
		t.Error("the event of another address is not foreign")
	}
	if !Foreign(nil) {
		t.Error("events that were lost are not foreign")
	}
}

// A node that leaves takes all its addresses away at one time: they read the links together, and each as they are since it
// asked.
func TestReadingsAreShared(t *testing.T) {
	ns, m := on(t)
	if _, err := m.fresh(); err != nil {
		t.Fatal(err)
	}
	ns.Addr(t, "eth0", "192.0.2.77/32")
	m.reading.Lock()
	seen := make([]host, 20)
	var asking sync.WaitGroup
	for i := range seen {
		asking.Go(func() {
			var err error
			if seen[i], err = m.fresh(); err != nil {
				t.Error(err)
			}
		})
	}
	time.Sleep(100 * time.Millisecond) // until all have asked
	m.reading.Unlock()
	asking.Wait()
	readings := map[time.Time]bool{}
	for _, h := range seen {
		readings[h.at] = true
		if !slices.ContainsFunc(h.entries, func(e entry) bool { return e.prefix.Addr().String() == "192.0.2.77" }) {
			t.Error("read before it was asked")
		}
	}
	if len(readings) > 2 {
		t.Errorf("%d readings", len(readings))
	}
}
