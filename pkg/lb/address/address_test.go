package address

import (
	"errors"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/internal/nstest"
	"github.com/tinkerbell/stack/pkg/lb/reason"
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

// host is a namespace with a link to another.
func host(t *testing.T) (*nstest.NS, *Manager) {
	t.Helper()
	ns, peer := nstest.New(t), nstest.New(t)
	nstest.Veth(t, ns, "eth0", peer, "eth0")
	ns.Addr(t, "eth0", "192.0.2.1/24")
	ns.Addr(t, "eth0", "2001:db8::1/64")
	return ns, NewAt(ns.Links())
}

// gone waits until the kernel has taken an address away.
func gone(t *testing.T, m *Manager, link Link, ip netip.Addr, atMost time.Duration) {
	t.Helper()
	start := time.Now()
	for time.Since(start) < atMost {
		if has, err := m.Has(link, ip); err != nil {
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
	_, m := host(t)
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
			gone(t, m, link, ip, 2*left)
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
	_, m := host(t)
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
			entries, err := m.list(ip)
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
	_, m := host(t)
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
		there, err := m.Left()
		if err != nil {
			t.Fatal(err)
		}
		for ip, end := range ends {
			if !slices.Contains(there, ip) {
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
	ns, m := host(t)
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
		if left, err := m.Left(); err != nil || !slices.Contains(left, ip) {
			t.Errorf("%s is not found again: %v, %v", ip, left, err)
		}
		for range 2 { // a second time finds nothing
			if _, err := m.Remove(ip); err != nil {
				t.Fatal(err)
			}
		}
		if has, _ := m.Has(link, ip); has {
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
		"no network":     {ip: "198.51.100.1", want: reason.NoLink},
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
			ns, m := host(t)
			if test.prepare != nil {
				test.prepare(t, ns)
			}
			_, err := m.Find(netip.MustParseAddr(test.ip), test.name)
			fault, ok := errors.AsType[*reason.Error](err)
			if !ok || fault.Reason != test.want {
				t.Errorf("got %v, want %s", err, test.want)
			}
		})
	}
}

func TestAddressesOfOthersStay(t *testing.T) {
	ns, m := host(t)
	ip := netip.MustParseAddr("192.0.2.10")
	ns.Addr(t, "eth0", "192.0.2.10/32")
	if found, err := m.Remove(ip); err != nil || found {
		t.Errorf("removed an address that somebody else has put there: %v", err)
	}
	if left, err := m.Left(); err != nil || len(left) > 0 {
		t.Errorf("took %v for ours: %v", left, err)
	}
	if _, err := m.Find(ip, ""); err == nil {
		t.Error("found a link for an address that the node has")
	}
	if err := m.Put(Link{Index: 1}, ip, time.Now().Add(time.Second)); !errors.Is(err, ErrTooLate) {
		t.Errorf("got %v, want %v", err, ErrTooLate)
	}
}
