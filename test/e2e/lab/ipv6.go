package lab

import (
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
)

// IPv6 addresses of labs with [Options.IPv6].
var (
	ServiceIP6 = netip.MustParseAddr("2001:db8:1::2")  // an address of prov0, DNAT to the pod
	NodeIP6    = netip.MustParseAddr("2001:db8:1::10") // prov0

	Pods6     = netip.MustParsePrefix("fd00:244::/64")
	PodsGWIP6 = netip.MustParseAddr("fd00:244::1") // cni0
	PodIP6    = netip.MustParseAddr("fd00:244::10")
	// DHCP6IP is where the DHCPv6 server of the lab listens, beside Smee.
	DHCP6IP = netip.MustParseAddr("fd00:244::11")
)

// UDPPorts6 are those of [ServiceIP6]; its TCP ports are [TCPPorts].
var UDPPorts6 = []uint16{69, 514, 547}

// wire6 gives an IPv6 address to everything that has an IPv4 one.
func (l *Lab) wire6() error {
	err := l.Do(RoleNode, func() error {
		for _, addr := range []struct {
			link string
			at   netip.Prefix
		}{
			{nodeUplink, netip.PrefixFrom(NodeIP6, LAN6.Bits())},
			{nodeUplink, netip.PrefixFrom(ServiceIP6, 128)},
			{bridgePods, netip.PrefixFrom(PodsGWIP6, Pods6.Bits())},
		} {
			if err := addAddr(addr.link, addr.at); err != nil {
				return err
			}
		}
		if err := addDefaultRoute(Gateway6); err != nil {
			return err
		}
		if err := setSysctl("net/ipv6/conf/all/forwarding", "1"); err != nil {
			return err
		}
		return forwardService6()
	})
	if err != nil {
		return fmt.Errorf("%s: %w", RoleNode, err)
	}
	for role, ip := range map[string]netip.Addr{RolePod: PodIP6, RoleSmee: DHCP6IP} {
		err := l.Do(role, func() error {
			if err := addAddr("eth0", netip.PrefixFrom(ip, Pods6.Bits())); err != nil {
				return err
			}
			return addDefaultRoute(PodsGWIP6)
		})
		if err != nil {
			return fmt.Errorf("%s: %w", role, err)
		}
	}
	return nil
}

// Service is the address that machines are told: the service IP of the site's family.
func (o *Options) Service() netip.Addr {
	if o.IPv6 {
		return ServiceIP6
	}
	return ServiceIP
}

// rangeBits is the length of a machine's range of addresses.
const rangeBits = 124

// Range6 is what a machine's IPv6 addresses are of. To DHCPv6 every stage of a boot is another client, with a DUID or
// an IAID of its own, and no server gives an address that one of them holds to the next: firmware's IP stack, its PXE,
// iPXE and the operating system get one each.
func (m Machine) Range6() netip.Prefix { return netip.PrefixFrom(m.IP6, rangeBits).Masked() }

// addresses6 are the addresses of the range.
func (m Machine) addresses6() (all []netip.Addr) {
	for addr := m.IP6; m.Range6().Contains(addr); addr = addr.Next() {
		all = append(all, addr)
	}
	return all
}

// Addrs are the machine's addresses in the site's family.
func (o *Options) Addrs(m Machine) []netip.Addr {
	if o.IPv6 {
		return m.addresses6()
	}
	return []netip.Addr{m.IP}
}

// everywhere is the destination of a default route.
func everywhere(of netip.Addr) netip.Prefix {
	if of.Is6() {
		return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
	}
	return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
}

// GlobalAddresses are the addresses of a role's link that are not link-local.
func (l *Lab) GlobalAddresses(role, link string) (addrs []netip.Addr, err error) {
	err = l.Do(role, func() error {
		found, err := netlink.LinkByName(link)
		if err != nil {
			return err
		}
		all, err := netlink.AddrList(found, netlink.FAMILY_V6)
		if err != nil {
			return err
		}
		for _, each := range all {
			if addr, ok := netip.AddrFromSlice(each.IP); ok && !addr.IsLinkLocalUnicast() {
				addrs = append(addrs, addr)
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("failed to list addresses of %s in %s: %w", link, role, err)
	}
	return addrs, nil
}
