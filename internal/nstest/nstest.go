// Package nstest gives a test its own network namespaces.
//
// A namespace lives as long as its test. Sockets opened inside [NS.Do] stay in the namespace for their whole
// life, so a test can open one there and use it from any goroutine.
package nstest

import (
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// settleTimeout is for links that never get an address, because IPv6 is off.
const settleTimeout = 3 * time.Second

// NS is a network namespace that belongs to one test.
type NS struct {
	handle netns.NsHandle
	links  *netlink.Handle
}

// New makes an empty namespace with its loopback up. The test is skipped where the process may not make one:
// it needs root or a user namespace ("unshare --user --map-root-user --net").
func New(tb testing.TB) *NS {
	tb.Helper()
	type made struct {
		handle netns.NsHandle
		err    error
	}
	result := make(chan made)
	go func() {
		// The thread is left locked, so that the runtime ends it together with the goroutine instead of
		// handing a thread in a foreign namespace to somebody else.
		runtime.LockOSThread()
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			result <- made{err: err}
			return
		}
		handle, err := netns.Get()
		result <- made{handle: handle, err: err}
	}()
	got := <-result
	if errors.Is(got.err, os.ErrPermission) {
		tb.Skip("needs root or a user namespace to make a network namespace (make test as root runs it)")
	}
	if got.err != nil {
		tb.Fatalf("failed to make network namespace: %v", got.err)
	}
	links, err := netlink.NewHandleAt(got.handle, unix.NETLINK_ROUTE)
	if err != nil {
		tb.Fatalf("failed to open netlink in test namespace: %v", err)
	}
	ns := &NS{handle: got.handle, links: links}
	tb.Cleanup(func() {
		links.Close()
		_ = ns.handle.Close()
	})
	ns.up(tb, "lo")
	return ns
}

// Links is the namespace's own rtnetlink handle.
func (ns *NS) Links() *netlink.Handle { return ns.links }

// Fd is the namespace's file descriptor, for netlink requests that name a namespace.
func (ns *NS) Fd() int { return int(ns.handle) }

// Do runs f on a thread inside the namespace and waits for it. Goroutines that f starts are outside: open
// sockets in f, use them anywhere.
func (ns *NS) Do(tb testing.TB, f func() error) {
	tb.Helper()
	if err := ns.Try(f); err != nil {
		tb.Fatal(err)
	}
}

// Try is [NS.Do] for callers that want the error.
func (ns *NS) Try(f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked, see New
		if err := netns.Set(ns.handle); err != nil {
			done <- fmt.Errorf("failed to enter test namespace: %w", err)
			return
		}
		done <- f()
	}()
	return <-done
}

// Veth joins two namespaces (or one with itself) by a pair of links that are up.
func Veth(tb testing.TB, a *NS, nameA string, b *NS, nameB string) {
	tb.Helper()
	veth := &netlink.Veth{
		LinkAttrs:     netlink.LinkAttrs{Name: nameA},
		PeerName:      nameB,
		PeerNamespace: netlink.NsFd(b.handle),
	}
	if err := a.links.LinkAdd(veth); err != nil {
		tb.Fatalf("failed to make veth %s-%s: %v", nameA, nameB, err)
	}
	a.up(tb, nameA)
	b.up(tb, nameB)
	a.settle(tb, nameA)
	b.settle(tb, nameB)
}

// settle waits until a link that has just come up has its link-local address, where there is IPv6.
func (ns *NS) settle(tb testing.TB, name string) {
	tb.Helper()
	for deadline := time.Now().Add(settleTimeout); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		addrs, err := ns.links.AddrList(ns.Link(tb, name), netlink.FAMILY_V6)
		if err != nil {
			return
		}
		for _, addr := range addrs {
			if addr.Flags&unix.IFA_F_TENTATIVE == 0 {
				return
			}
		}
	}
}

// Addr gives a link an address such as "192.0.2.1/24".
func (ns *NS) Addr(tb testing.TB, link, cidr string) {
	tb.Helper()
	addr, err := netlink.ParseAddr(cidr)
	if err != nil {
		tb.Fatal(err)
	}
	if addr.IP.To4() == nil {
		addr.Flags = unix.IFA_F_NODAD // duplicate address detection takes 1.5 s
	}
	if err := ns.links.AddrReplace(ns.Link(tb, link), addr); err != nil {
		tb.Fatalf("failed to add %s to %s: %v", cidr, link, err)
	}
}

// Route adds a route to dst ("default" or a prefix) through a gateway.
func (ns *NS) Route(tb testing.TB, dst, via string) {
	tb.Helper()
	gateway := net.ParseIP(via)
	if dst == "default" {
		dst = "0.0.0.0/0"
		if gateway.To4() == nil {
			dst = "::/0"
		}
	}
	_, prefix, err := net.ParseCIDR(dst)
	if err != nil {
		tb.Fatal(err)
	}
	if err := ns.links.RouteReplace(&netlink.Route{Dst: prefix, Gw: gateway}); err != nil {
		tb.Fatalf("failed to add route %s via %s: %v", dst, via, err)
	}
}

// Link finds a link by name.
func (ns *NS) Link(tb testing.TB, name string) netlink.Link {
	tb.Helper()
	link, err := ns.links.LinkByName(name)
	if err != nil {
		tb.Fatalf("failed to find link %s: %v", name, err)
	}
	return link
}

func (ns *NS) up(tb testing.TB, name string) {
	tb.Helper()
	// Link-local addresses are tentative for a second or two, in which a neighbour cannot be asked for on behalf of
	// another source. Not every sandbox lets this be set.
	_ = ns.Try(func() error {
		return os.WriteFile("/proc/sys/net/ipv6/conf/"+name+"/accept_dad", []byte("0"), 0)
	})
	if err := ns.links.LinkSetUp(ns.Link(tb, name)); err != nil {
		tb.Fatalf("failed to bring %s up: %v", name, err)
	}
}
