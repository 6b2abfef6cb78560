// Package address puts an address on a link for some seconds at a time. The kernel takes it away when it is not put
// again, so that it does not outlive a process that hangs or was killed.
package address

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// KernelDelay is how late the kernel may be in taking an address away: it counts whole seconds, and looks at
// lifetimes at most once a second (ADDRCONF_TIMER_FUZZ_MAX).
const KernelDelay = time.Second + callDelay

// callDelay is how long a call to the kernel may take, during which the process may stand still.
const callDelay = 50 * time.Millisecond

// ErrTooLate is returned by Put when less than the least lifetime is left.
var ErrTooLate = errors.New("the lease has been held too long without a renewal")

// Manager changes the addresses of the links of one network namespace. It needs the capability NET_ADMIN.
type Manager struct {
	links *netlink.Handle

	mu   sync.Mutex
	seen host // what Find has read last

	reading sync.Mutex // held while fresh reads
	last    host       // what it has read
}

// New makes a manager for this thread's network namespace.
func New() (*Manager, error) {
	links, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("failed to open rtnetlink: %w", err)
	}
	return &Manager{links: links}, nil
}

// NewAt makes a manager of another namespace by its handle.
func NewAt(links *netlink.Handle) *Manager { return &Manager{links: links} }

// Close ends the manager.
func (m *Manager) Close() { m.links.Close() }

// Lifetime is how many whole seconds an address may live, so that the kernel has taken it away when left has passed,
// even if it is late. It is 0 if that is less than a second.
func Lifetime(left time.Duration) int { return max(0, int((left-KernelDelay)/time.Second)) }

// Put puts an address on a link, or prolongs its life there, so that it is gone at end. The address has no network
// route, is usable at once (no duplicate address detection: the caller has probed for it), and is never chosen as the
// source of the node's own connections.
func (m *Manager) Put(link Link, ip netip.Addr, end time.Time) error {
	address := describe(ip)
	dummy := &netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Index: link.Index}}
	for {
		lifetime := Lifetime(time.Until(end))
		if lifetime == 0 {
			break
		}
		address.ValidLft, address.PreferedLft = lifetime, 0
		if err := m.links.AddrReplace(dummy, address); err != nil {
			return fmt.Errorf("failed to put %s on link %s (the capability NET_ADMIN is needed): %w", ip, link.Name, err)
		}
		// The call may have taken long, or the process has stood still since the lifetime was counted: then the address
		// would live too long, and is put for what is left.
		if Lifetime(time.Until(end)+callDelay) >= lifetime {
			return nil
		}
	}
	_, err := m.Remove(ip)
	return errors.Join(ErrTooLate, err)
}

func describe(ip netip.Addr) *netlink.Addr {
	bits := ip.BitLen()
	return &netlink.Addr{
		IPNet: &net.IPNet{IP: ip.AsSlice(), Mask: net.CIDRMask(bits, bits)},
		Flags: unix.IFA_F_NOPREFIXROUTE | unix.IFA_F_NODAD,
	}
}

// Remove takes an address of Put off all links; found tells whether there was one. It touches no address of others.
func (m *Manager) Remove(ip netip.Addr) (found bool, err error) {
	now, err := m.fresh()
	if err != nil {
		return false, err
	}
	for _, e := range now.entries {
		if e.prefix.Addr() != ip || !e.ours {
			continue
		}
		found = true
		link := &netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Index: e.link}}
		if err := m.links.AddrDel(link, describe(ip)); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) &&
			!errors.Is(err, unix.ENODEV) {
			return true, fmt.Errorf("failed to remove %s (the capability NET_ADMIN is needed): %w", ip, err)
		}
	}
	return found, nil
}

// Has reports whether a link that answers for it has the address still, whoever has put it there.
func (m *Manager) Has(ip netip.Addr) (bool, error) {
	now, err := m.fresh()
	return slices.ContainsFunc(now.entries, func(e entry) bool { return e.prefix.Addr() == ip && e.speaks }), err
}

// maxNeighbours is how many Neighbours lists: switches that inspect ARP shut a port after 15 questions a second.
const maxNeighbours = 4

// Neighbours are stations of a link that this host has had to do with, of the family of ip: its default routers come
// first, and then those that have answered lately. Those that have not answered at all are none.
func (m *Manager) Neighbours(link Link, ip netip.Addr) ([]netip.Addr, error) {
	family := netlink.FAMILY_V4
	if ip.Is6() {
		family = netlink.FAMILY_V6
	}
	var known []netlink.Neigh
	err := retry(func() (err error) {
		known, err = m.links.NeighList(link.Index, family)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("failed to list neighbours on link %s: %w", link.Name, err)
	}
	near, err := m.routers(link, family)
	if err != nil {
		return nil, err
	}
	slices.SortStableFunc(known, func(a, b netlink.Neigh) int {
		return cmp.Compare(b.State&unix.NUD_REACHABLE, a.State&unix.NUD_REACHABLE)
	})
	const answered = unix.NUD_REACHABLE | unix.NUD_STALE | unix.NUD_DELAY | unix.NUD_PROBE | unix.NUD_PERMANENT
	for _, n := range known {
		a, ok := netip.AddrFromSlice(n.IP)
		a = a.Unmap()
		if ok && n.State&answered != 0 && a != ip && !a.IsMulticast() && !slices.Contains(near, a) {
			near = append(near, a)
		}
	}
	return near[:min(len(near), maxNeighbours)], nil
}

// routers are those of a link's default routes.
func (m *Manager) routers(link Link, family int) (found []netip.Addr, err error) {
	var routes []netlink.Route
	err = retry(func() (err error) {
		routes, err = m.links.RouteListFiltered(family, &netlink.Route{LinkIndex: link.Index}, netlink.RT_FILTER_OIF)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("failed to list routes of link %s: %w", link.Name, err)
	}
	for _, r := range routes {
		router, ok := netip.AddrFromSlice(r.Gw)
		if ok && isDefault(r.Dst) && !slices.Contains(found, router.Unmap()) {
			found = append(found, router.Unmap())
		}
	}
	return found, nil
}

// isDefault reports whether a route's destination is all addresses.
func isDefault(to *net.IPNet) bool {
	if to == nil {
		return true
	}
	bits, _ := to.Mask.Size()
	return bits == 0
}
