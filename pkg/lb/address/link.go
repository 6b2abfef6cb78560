package address

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/pkg/lb/reason"
)

// Link is where an address may be.
type Link struct {
	Index int
	Name  string
	MAC   net.HardwareAddr
}

// Interface is the link as the net package has it.
func (l Link) Interface() *net.Interface {
	return &net.Interface{Index: l.Index, Name: l.Name, HardwareAddr: l.MAC}
}

// infinite is the lifetime of an address that has none.
const infinite = 0xffffffff

// entry is an address that this host has.
type entry struct {
	link   int
	prefix netip.Prefix
	ours   bool
}

// isOurs recognises an address of Put: a prefix of full length without a route, never preferred, with an end. In the
// time between its end and that at which the kernel takes it away, it has no second left.
func isOurs(a netlink.Addr, prefix netip.Prefix) bool {
	return prefix.IsSingleIP() && a.Flags&unix.IFA_F_NOPREFIXROUTE != 0 && a.PreferedLft == 0 &&
		a.Flags&unix.IFA_F_PERMANENT == 0 && a.ValidLft != infinite
}

// list reads this host's addresses of the family of ip.
func (m *Manager) list(ip netip.Addr) ([]entry, error) {
	family := netlink.FAMILY_V4
	if ip.Is6() {
		family = netlink.FAMILY_V6
	}
	var found []netlink.Addr
	err := retry(func() (err error) {
		found, err = m.links.AddrList(nil, family)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("failed to list addresses: %w", err)
	}
	entries := make([]entry, 0, len(found))
	for _, a := range found {
		addr, ok := netip.AddrFromSlice(a.IP)
		bits, _ := a.Mask.Size()
		if !ok {
			continue
		}
		prefix := netip.PrefixFrom(addr.Unmap(), bits)
		entries = append(entries, entry{link: a.LinkIndex, prefix: prefix, ours: isOurs(a, prefix)})
	}
	return entries, nil
}

// retry asks the kernel again where its answer changed meanwhile.
func retry(ask func() error) error {
	var err error
	for range 5 {
		if err = ask(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			return err
		}
	}
	return err
}

// Find returns the link for an address: the named one, else the one whose network has the address. Errors that somebody
// has to do something about are of type reason.Error.
func (m *Manager) Find(ip netip.Addr, name string) (Link, error) {
	entries, err := m.list(ip)
	if err != nil {
		return Link{}, err
	}
	var links []netlink.Link
	err = retry(func() (err error) {
		links, err = m.links.LinkList()
		return err
	})
	if err != nil {
		return Link{}, fmt.Errorf("failed to list links: %w", err)
	}
	for _, e := range entries {
		if e.prefix.Addr() == ip && !e.ours {
			return Link{}, reason.Errorf(reason.NodeAddress,
				"this node has %s already, on %s: ask for one that no host has (IPVS mode of kube-proxy needs strictARP)",
				e.prefix, nameOf(links, e.link))
		}
	}
	best := choose(entries, links, ip, name)
	if best == nil {
		if name != "" {
			return Link{}, reason.Errorf(reason.LinkMissing, "this node has no link %s: name another, or create it", name)
		}
		return Link{}, reason.Errorf(reason.NoLink,
			"no link of this node has a network with %s: ask for an address of the nodes' network, or name the link", ip)
	}
	return check(best, entries, ip)
}

// choose finds the link by its name, or by the longest prefix that contains ip.
func choose(entries []entry, links []netlink.Link, ip netip.Addr, name string) netlink.Link {
	var best netlink.Link
	longest := -1
	for _, link := range links {
		attrs := link.Attrs()
		if name != "" {
			if attrs.Name == name {
				return link
			}
			continue
		}
		for _, e := range entries {
			if e.link == attrs.Index && !e.ours && !e.prefix.IsSingleIP() && e.prefix.Contains(ip) &&
				!e.prefix.Addr().IsLoopback() && !e.prefix.Addr().IsLinkLocalUnicast() && e.prefix.Bits() > longest {
				best, longest = link, e.prefix.Bits()
			}
		}
	}
	return best
}

// check says whether a link may have the address now.
func check(link netlink.Link, entries []entry, ip netip.Addr) (Link, error) {
	attrs := link.Attrs()
	found := Link{Index: attrs.Index, Name: attrs.Name, MAC: attrs.HardwareAddr}
	if len(attrs.HardwareAddr) != 6 || attrs.RawFlags&unix.IFF_NOARP != 0 || attrs.RawFlags&unix.IFF_LOOPBACK != 0 {
		return found, reason.Errorf(reason.NoLink,
			"link %s has no Ethernet address, so that nobody can be told of %s: name another link", attrs.Name, ip)
	}
	if attrs.RawFlags&unix.IFF_UP == 0 {
		return found, reason.Errorf(reason.LinkDown, "link %s is down: bring it up", attrs.Name)
	}
	if attrs.RawFlags&unix.IFF_LOWER_UP == 0 || attrs.OperState == netlink.OperLowerLayerDown {
		return found, reason.Errorf(reason.LinkDown, "link %s has no carrier: look at the cable and the switch", attrs.Name)
	}
	for _, e := range entries {
		if e.link == attrs.Index && !e.ours {
			return found, nil
		}
	}
	return found, reason.Errorf(reason.FirstAddress,
		"link %s has no address of the family of %s, which would become the node's own: give the link an address first",
		attrs.Name, ip)
}

func nameOf(links []netlink.Link, index int) string {
	for _, link := range links {
		if link.Attrs().Index == index {
			return link.Attrs().Name
		}
	}
	return fmt.Sprintf("link %d", index)
}
