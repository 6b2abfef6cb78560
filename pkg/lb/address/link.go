package address

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/pkg/lb/reason"
)

// Link is where an address may be.
type Link struct {
	Index int
	Name  string
	MAC   net.HardwareAddr
	// Stations are the Ethernet addresses of all links of this node in the address's network, separated by commas: by
	// default Linux answers for each of its addresses on every link.
	Stations string
	// Source is an address that this node keeps on the link, of the family of the address; link-local in IPv6.
	Source netip.Addr
}

// Is reports whether the link is the other one still, and the same station.
func (l Link) Is(other Link) bool { return l.Index == other.Index && bytes.Equal(l.MAC, other.MAC) }

// Interface is the link as the net package has it.
func (l Link) Interface() *net.Interface {
	return &net.Interface{Index: l.Index, Name: l.Name, HardwareAddr: l.MAC}
}

// infinite is the lifetime of an address that has none.
const infinite = 0xffffffff

// Foreign reports whether rtnetlink messages tell of anything but that addresses of Put were put again. None at all
// stand for some that were lost.
func Foreign(messages []byte) bool {
	parsed, err := syscall.ParseNetlinkMessage(messages)
	for _, m := range parsed {
		if m.Header.Type != unix.RTM_NEWADDR || len(m.Data) < unix.SizeofIfAddrmsg {
			return true
		}
		attributes, err := nl.ParseRouteAttr(m.Data[unix.SizeofIfAddrmsg:])
		if err != nil {
			return true
		}
		a, bits := netlink.Addr{ValidLft: infinite}, int(m.Data[1])
		var ip netip.Addr
		for _, attribute := range attributes {
			switch value := attribute.Value; {
			case attribute.Attr.Type == unix.IFA_ADDRESS:
				ip, _ = netip.AddrFromSlice(value)
			case attribute.Attr.Type == unix.IFA_FLAGS && len(value) == 4:
				a.Flags = int(binary.NativeEndian.Uint32(value))
			case attribute.Attr.Type == unix.IFA_CACHEINFO && len(value) >= 8:
				a.PreferedLft = int(binary.NativeEndian.Uint32(value))
				a.ValidLft = int(binary.NativeEndian.Uint32(value[4:]))
			}
		}
		if !isOurs(a, netip.PrefixFrom(ip, bits)) {
			return true
		}
	}
	return err != nil || len(parsed) == 0
}

// entry is an address that this host has.
type entry struct {
	link   int
	prefix netip.Prefix
	ours   bool
	// speaks says that the link speaks ARP. kube-proxy in IPVS mode keeps all addresses of Services on one that does not.
	speaks bool
}

// host is the links and addresses of this host at a time.
type host struct {
	links   []netlink.Link
	entries []entry
	at      time.Time
}

// maxAge is how long Find goes by what was read before, where no event has told of a change.
const maxAge = time.Second

// isOurs recognises an address of Put: a prefix of full length without a route, never preferred, with an end. In the
// time between its end and that at which the kernel takes it away, it has no second left.
func isOurs(a netlink.Addr, prefix netip.Prefix) bool {
	return prefix.IsSingleIP() && a.Flags&unix.IFA_F_NOPREFIXROUTE != 0 && a.PreferedLft == 0 &&
		a.Flags&unix.IFA_F_PERMANENT == 0 && a.ValidLft != infinite
}

// list reads this host's addresses.
func (m *Manager) list() ([]entry, error) {
	var found []netlink.Addr
	err := retry(func() (err error) {
		found, err = m.links.AddrList(nil, netlink.FAMILY_ALL)
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

// read reads this host's links and addresses.
func (m *Manager) read() (host, error) {
	h := host{at: time.Now()}
	err := retry(func() (err error) {
		h.links, err = m.links.LinkList()
		return err
	})
	if err != nil {
		return host{}, fmt.Errorf("failed to list links: %w", err)
	}
	if h.entries, err = m.list(); err != nil {
		return host{}, err
	}
	for i := range h.entries {
		link := h.link(h.entries[i].link)
		h.entries[i].speaks = link == nil || speaks(link)
	}
	return h, nil
}

// fresh is what is read from now on. Those that ask while another one reads share the next reading: a node that leaves
// takes all its addresses away at one time.
func (m *Manager) fresh() (host, error) {
	asked := time.Now()
	m.reading.Lock()
	defer m.reading.Unlock()
	if m.last.at.After(asked) {
		return m.last, nil
	}
	h, err := m.read()
	if err == nil {
		m.last = h
	}
	return h, err
}

// recent is what was read a moment ago, so that the tasks of many addresses do not each ask the kernel.
func (m *Manager) recent() (host, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if time.Since(m.seen.at) < maxAge {
		return m.seen, nil
	}
	seen, err := m.read()
	if err == nil {
		m.seen = seen
	}
	return seen, err
}

// Changed has Find read the links and addresses anew.
func (m *Manager) Changed() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.seen = host{}
}

func (h host) link(index int) netlink.Link {
	i := slices.IndexFunc(h.links, func(l netlink.Link) bool { return l.Attrs().Index == index })
	if i < 0 {
		return nil
	}
	return h.links[i]
}

// speaks reports whether a link is one on which stations ask for addresses.
func speaks(link netlink.Link) bool {
	return link.Attrs().RawFlags&unix.IFF_NOARP == 0 && link.Type() != "dummy"
}

// carries reports whether a link is up and has a carrier.
func carries(link netlink.Link) bool {
	attrs := link.Attrs()
	return attrs.RawFlags&unix.IFF_UP != 0 && attrs.RawFlags&unix.IFF_LOWER_UP != 0 &&
		attrs.OperState != netlink.OperLowerLayerDown
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
	now, err := m.recent()
	if err != nil {
		return Link{}, err
	}
	for _, e := range now.entries {
		if e.prefix.Addr() == ip && !e.ours && e.speaks {
			return Link{}, reason.Errorf(reason.NodeAddress,
				"this node has %s already, on %s: ask for one that no host has", e.prefix, nameOf(now.link(e.link), e.link))
		}
	}
	if now.reserved(ip) {
		return Link{}, reason.Errorf(reason.BadAddress,
			"%s is the first or the last address of a network of this node, which no host can have: ask for another", ip)
	}
	best := now.choose(ip, name)
	if best == nil {
		if name != "" {
			return Link{}, reason.Errorf(reason.LinkMissing, "this node has no link %s: name another, or create it", name)
		}
		return Link{}, reason.Errorf(reason.NoLink,
			"no link of this node has a network with %s: ask for an address of the nodes' network, or name the link", ip)
	}
	link, err := now.check(best, ip)
	if err == nil {
		err = now.hidden(best, ip)
	}
	return link, err
}

// reserved reports whether the address is a network's own, its broadcast address (RFC 919 section 7) or, in IPv6, that
// of any router (RFC 4291 section 2.6.1). Networks of two addresses have none (RFC 3021, RFC 6164).
func (h host) reserved(ip netip.Addr) bool {
	return slices.ContainsFunc(h.entries, func(e entry) bool {
		if e.ours || !e.prefix.Contains(ip) || e.prefix.Bits() >= ip.BitLen()-1 {
			return false
		}
		first, last := e.prefix.Masked().Addr(), true
		host := ip.AsSlice()
		for bit := e.prefix.Bits(); bit < ip.BitLen(); bit++ {
			last = last && host[bit/8]&(0x80>>(bit%8)) != 0
		}
		return ip == first || ip.Is4() && last
	})
}

// hidden says whether this node would answer for an address of kube-ipvs0, or of another link that does not speak ARP,
// on the link without having put it there: then every node does.
func (h host) hidden(on netlink.Link, ip netip.Addr) error {
	for _, e := range h.entries {
		if ip.Is4() && e.prefix.Addr() == ip && !e.speaks && arpIgnore(on.Attrs().Name) == 0 {
			return reason.Errorf(reason.NodeAddress,
				"%s is on %s, and this node answers ARP for it on %s: set strictARP of kube-proxy's IPVS mode, or arp_ignore",
				ip, nameOf(h.link(e.link), e.link), on.Attrs().Name)
		}
	}
	return nil
}

// arpIgnore is how the kernel answers ARP on a link: 0 is for all of the host's addresses.
func arpIgnore(link string) (level int) {
	for _, name := range []string{"all", link} {
		text, err := os.ReadFile("/proc/sys/net/ipv4/conf/" + name + "/arp_ignore")
		if err != nil {
			return 1 // it cannot be known: the wire tells
		}
		value, _ := strconv.Atoi(strings.TrimSpace(string(text)))
		level = max(level, value)
	}
	return level
}

// choose finds the link by its name, or by the longest prefix that contains ip; of two, one that carries, and of two
// that do, the one that has the address: it does not go back to a link that was out.
func (h host) choose(ip netip.Addr, name string) netlink.Link {
	var best netlink.Link
	longest := -1
	score := func(link netlink.Link) (s int) {
		if carries(link) {
			s = 2
		}
		if slices.ContainsFunc(h.entries, func(e entry) bool {
			return e.link == link.Attrs().Index && e.ours && e.prefix.Addr() == ip
		}) {
			s++
		}
		return s
	}
	for _, link := range h.links {
		attrs := link.Attrs()
		if name != "" {
			if attrs.Name == name {
				return link
			}
			continue
		}
		bits := h.bits(attrs.Index, ip)
		if bits > longest || bits >= 0 && bits == longest && score(link) > score(best) {
			best, longest = link, bits
		}
	}
	return best
}

// bits is the length of the longest network on a link that speaks and has ip; -1 is none.
func (h host) bits(link int, ip netip.Addr) int {
	longest := -1
	for _, e := range h.entries {
		if e.link == link && e.speaks && !e.ours && !e.prefix.IsSingleIP() && e.prefix.Contains(ip) &&
			!e.prefix.Addr().IsLoopback() && !e.prefix.Addr().IsLinkLocalUnicast() {
			longest = max(longest, e.prefix.Bits())
		}
	}
	return longest
}

// check says whether a link may have the address now.
func (h host) check(link netlink.Link, ip netip.Addr) (Link, error) {
	attrs := link.Attrs()
	found := Link{Index: attrs.Index, Name: attrs.Name, MAC: attrs.HardwareAddr}
	if len(attrs.HardwareAddr) != 6 || !speaks(link) || attrs.RawFlags&unix.IFF_LOOPBACK != 0 {
		return found, reason.Errorf(reason.NoLink,
			"link %s has no Ethernet address, so that nobody can be told of %s: name another link", attrs.Name, ip)
	}
	if attrs.RawFlags&unix.IFF_UP == 0 {
		return found, reason.Errorf(reason.LinkDown, "link %s is down: bring it up", attrs.Name)
	}
	if !carries(link) {
		return found, reason.Errorf(reason.LinkDown, "link %s has no carrier: look at the cable and the switch", attrs.Name)
	}
	own := false
	for _, e := range h.entries {
		if e.link != attrs.Index || e.ours || e.prefix.Addr().Is4() != ip.Is4() {
			continue
		}
		own = true
		if !e.prefix.IsSingleIP() && (ip.Is4() || e.prefix.Addr().IsLinkLocalUnicast()) &&
			(!found.Source.IsValid() || e.prefix.Contains(ip)) {
			found.Source = e.prefix.Addr()
		}
	}
	if !own {
		return found, reason.Errorf(reason.FirstAddress,
			"link %s has no address of the family of %s, which would become the node's own: give the link an address first",
			attrs.Name, ip)
	}
	stations := []string{attrs.HardwareAddr.String()}
	for _, other := range h.links {
		mac := other.Attrs().HardwareAddr.String()
		if h.bits(other.Attrs().Index, ip) >= 0 && !slices.Contains(stations, mac) {
			stations = append(stations, mac)
		}
	}
	found.Stations = strings.Join(stations, ",")
	return found, nil
}

func nameOf(link netlink.Link, index int) string {
	if link == nil {
		return fmt.Sprintf("link %d", index)
	}
	return link.Attrs().Name
}
