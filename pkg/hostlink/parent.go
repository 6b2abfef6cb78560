package hostlink

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Link is an interface of the node.
type Link struct {
	Index    int
	Name     string
	AltNames []string
	// Kind is the kernel's name of the kind; "device" for hardware.
	Kind string
	MAC  net.HardwareAddr
	MTU  int
	// Up says that it is administratively up, Carrier that it has a link as well.
	Up, Carrier bool
	// Chosen says why it is the parent.
	Chosen string

	ethernet, loopback bool
	master             int // index of the bridge or bond it belongs to, or 0
	lower              int // index of the link it is made upon, or 0
	lowerNS            int // namespace id of that one, -1 for the same
	received           uint64
	layer3             bool // of an ipvlan: its mode is not L2
}

// String is the link's name, with the altnames that it has.
func (l Link) String() string {
	if len(l.AltNames) == 0 {
		return l.Name
	}
	return l.Name + " (" + strings.Join(l.AltNames, ", ") + ")"
}

// family of kinds that exclude each other on one parent; zero for links that are neither.
func (l Link) exclusive() (Kind, bool) {
	switch l.Kind {
	case "macvlan", "macvtap":
		return Macvlan, true
	case "ipvlan", "ipvtap":
		return IPvlan, true
	default:
		return 0, false
	}
}

// Parent finds the node's interface that a selector means (see [Spec.Parent]).
func (h *Host) Parent(selector string) (Link, error) {
	link, err := h.choose(selector)
	if err != nil {
		return Link{}, err
	}
	return h.beneath(link)
}

func (h *Host) choose(selector string) (Link, error) {
	if selector == "" {
		name, family, err := h.defaultRoute()
		if err != nil {
			return Link{}, err
		}
		link, err := h.named(unix.IFLA_IFNAME, name)
		if errors.Is(err, errNoLink) {
			return Link{}, noParent(name, nil)
		}
		link.Chosen = family + " default route"
		return link, err
	}
	if len(selector) < unix.IFNAMSIZ {
		link, err := h.named(unix.IFLA_IFNAME, selector)
		if !errors.Is(err, errNoLink) {
			link.Chosen = "name"
			if link.Name != selector { // the kernel knows short altnames as names
				link.Chosen = "altname " + selector
			}
			return link, err
		}
	}
	if len(selector) < altNameSize {
		link, err := h.named(unix.IFLA_ALT_IFNAME, selector)
		if !errors.Is(err, errNoLink) && !errors.Is(err, unix.EINVAL) { // before Linux 5.5 there were no altnames
			link.Chosen = "altname " + selector
			return link, err
		}
	}
	return h.described(selector)
}

const altNameSize = 128 // ALTIFNAMSIZ

// named finds a link by its name or altname.
func (h *Host) named(attr int, name string) (Link, error) {
	link, err := h.conn.link(getLink(h.nsid, 0, nl.NewRtAttr(attr, nl.ZeroTerminated(name))))
	return link, h.asked(err)
}

// asked puts the kernel's refusal to tell about the node's links into words.
func (h *Host) asked(err error) error {
	switch errno, _ := asErrno(err); {
	case err == nil || errors.Is(err, errNoLink):
		return err
	case errno == unix.EPERM || errno == unix.EACCES:
		return noHostAccess(err)
	default:
		return fmt.Errorf("failed to read the node's interfaces: %w", err)
	}
}

// described finds the link that has a MAC address, an IP address, or an address in a prefix.
func (h *Host) described(selector string) (Link, error) {
	links, err := h.conn.links(h.nsid)
	if err != nil {
		return Link{}, h.asked(err)
	}
	var found []Link
	chosen := ""
	if mac, err := net.ParseMAC(selector); err == nil {
		chosen = "MAC address " + selector
		found = withMAC(links, mac)
	} else if prefix, ok := parsePrefix(selector); ok {
		chosen = "address in " + prefix.String()
		if prefix.IsSingleIP() {
			chosen = "address " + prefix.Addr().String()
		}
		addresses, err := h.conn.addresses(h.nsid)
		if err != nil {
			return Link{}, h.asked(err)
		}
		found = within(links, addresses, prefix)
	}
	switch len(found) {
	case 0:
		return Link{}, noParent(selector, links)
	case 1:
		found[0].Chosen = chosen
		return found[0], nil
	default:
		return Link{}, ambiguous(selector, found)
	}
}

// withMAC picks the links with a MAC address. A bond, a bridge, a VLAN all have the address of a link below them:
// the one to listen on is above the members of a bond, and below the VLANs.
func withMAC(links []Link, mac net.HardwareAddr) []Link {
	var found []Link
	for _, link := range links {
		if link.ethernet && bytes.Equal(link.MAC, mac) {
			found = append(found, link)
		}
	}
	isMember := func(l Link) bool {
		return slices.ContainsFunc(found, func(other Link) bool { return other.Index == l.master })
	}
	isUpon := func(l Link) bool {
		return slices.ContainsFunc(found, func(other Link) bool { return l.lowerNS < 0 && other.Index == l.lower })
	}
	return slices.DeleteFunc(slices.Clone(found), func(l Link) bool { return isMember(l) || isUpon(l) })
}

// within picks the links that have an address in a prefix, once each.
func within(links []Link, addresses []address, prefix netip.Prefix) []Link {
	return slices.DeleteFunc(slices.Clone(links), func(link Link) bool {
		return link.loopback || !slices.ContainsFunc(addresses, func(a address) bool {
			ip, ok := netip.AddrFromSlice(a.ip)
			return ok && a.link == link.Index && prefix.Contains(ip)
		})
	})
}

// parsePrefix reads an IP address or a prefix.
func parsePrefix(text string) (netip.Prefix, bool) {
	if ip, err := netip.ParseAddr(text); err == nil {
		ip = ip.Unmap().WithZone("")
		return netip.PrefixFrom(ip, ip.BitLen()), true
	}
	prefix, err := netip.ParsePrefix(text)
	return prefix.Masked(), err == nil
}

// beneath is what the kernel makes of a macvlan or ipvlan as the parent: the link below that one.
func (h *Host) beneath(link Link) (Link, error) {
	if _, ok := link.exclusive(); !ok || link.lowerNS >= 0 || link.lower == 0 {
		return link, nil
	}
	lower, err := h.conn.link(getLink(h.nsid, link.lower))
	if err != nil {
		return Link{}, fmt.Errorf("failed to find the interface below %s: %w", link.Name, h.asked(err))
	}
	lower.Chosen = fmt.Sprintf("%s, %s on it is of kind %s", link.Chosen, link.Name, link.Kind)
	return lower, nil
}

// check finds the known reasons why a parent would not do.
func (h *Host) check(parent Link, kind Kind) error {
	switch {
	case !parent.ethernet || parent.loopback:
		return newFault(NotEthernet, nil,
			fmt.Sprintf("parent %s (chosen by %s) is not an Ethernet interface", parent.Name, parent.Chosen),
			"name the interface of the provisioning network as the parent")
	case parent.master != 0:
		master, err := h.conn.link(getLink(h.nsid, parent.master))
		if err != nil {
			return fmt.Errorf("failed to find what %s belongs to: %w", parent.Name, h.asked(err))
		}
		if fault := owned(parent, master); fault != nil {
			return fault
		}
	}
	if !parent.Up {
		return newFault(ParentDown, nil,
			fmt.Sprintf("parent %s (chosen by %s) is down", parent.Name, parent.Chosen),
			fmt.Sprintf("bring it up on the node (ip link set %s up), or name another parent", parent.Name))
	}
	links, err := h.conn.links(h.nsid)
	if err != nil {
		return h.asked(err)
	}
	if fault := occupied(parent, kind, links); fault != nil {
		return fault
	}
	return nil
}

// owned objects to a parent whose frames go to somebody else. A VRF, for one, does not take them.
func owned(parent, master Link) *Fault {
	switch master.Kind {
	case "bridge":
		return newFault(BridgePort, nil,
			fmt.Sprintf("parent %s is a port of the bridge %s, which takes all its frames", parent.Name, master.Name),
			fmt.Sprintf("name %s as the parent", master.Name))
	case "bond", "team":
		return newFault(BondSlave, nil,
			fmt.Sprintf("parent %s is a member of the %s %s", parent.Name, master.Kind, master.Name),
			fmt.Sprintf("name %s as the parent", master.Name))
	}
	return nil
}

// occupied objects to children of the other kind that are to be seen in the node's namespace. Those in pods are
// not; the kernel objects to them with EBUSY, see [refused].
func occupied(parent Link, kind Kind, links []Link) *Fault {
	for _, child := range links {
		its, ok := child.exclusive()
		if !ok || child.lower != parent.Index || child.lowerNS >= 0 {
			continue
		}
		if its == IPvlan && kind == IPvlan && child.layer3 {
			return newFault(OtherMode, nil,
				fmt.Sprintf("parent %s already has the ipvlan %s in an L3 mode, which would be changed to L2 with ours",
					parent.Name, child.Name),
				"name another parent: all ipvlans of one have the same mode")
		}
		if its == kind {
			continue
		}
		return newFault(OtherKind, nil,
			fmt.Sprintf("parent %s already has %s of kind %s, and takes no %s beside it",
				parent.Name, child.Name, child.Kind, kind),
			fmt.Sprintf("remove it from the node, where a former relay may have left it (ip link del %s), "+
				"or set the kind to %s", child.Name, its))
	}
	return nil
}

// defaultRoute names the interface of the node's default route: IPv4's, else IPv6's, of the lowest metric.
func (h *Host) defaultRoute() (name, family string, err error) {
	for _, table := range []struct {
		family, file string
		parse        func([]byte) []route
	}{{"IPv4", "route", defaultRoutes4}, {"IPv6", "ipv6_route", defaultRoutes6}} {
		text, err := h.readProc(table.file)
		if err != nil {
			return "", "", err
		}
		if routes := table.parse(text); len(routes) > 0 {
			best := slices.MinFunc(routes, func(a, b route) int { return cmp.Compare(a.metric, b.metric) })
			return best.device, table.family, nil
		}
	}
	return "", "", noRoute()
}
