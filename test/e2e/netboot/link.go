package netboot

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
)

// Configure gives an interface of the calling thread's network namespace the address and the default route of a
// lease, and nothing else.
func Configure(ifname string, lease Lease) error {
	if err := Flush(ifname); err != nil {
		return err
	}
	link, err := netlink.LinkByName(ifname)
	if err != nil {
		return fmt.Errorf("failed to find interface %s: %w", ifname, err)
	}
	if err := netlink.AddrReplace(link, &netlink.Addr{IPNet: ipNet(lease.Addr)}); err != nil {
		return fmt.Errorf("failed to give %s to %s: %w", lease.Addr, ifname, err)
	}
	if !lease.Gateway.IsValid() {
		return nil
	}
	everywhere := netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	route := &netlink.Route{LinkIndex: link.Attrs().Index, Dst: ipNet(everywhere), Gw: lease.Gateway.AsSlice()}
	if err := netlink.RouteReplace(route); err != nil {
		return fmt.Errorf("failed to add default route via %s: %w", lease.Gateway, err)
	}
	return nil
}

// Flush brings an interface up and takes its IPv4 addresses away.
func Flush(ifname string) error {
	link, err := netlink.LinkByName(ifname)
	if err != nil {
		return fmt.Errorf("failed to find interface %s: %w", ifname, err)
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("failed to bring %s up: %w", ifname, err)
	}
	addrs, err := netlink.AddrList(link, netlink.FAMILY_V4)
	if err != nil {
		return fmt.Errorf("failed to list addresses of %s: %w", ifname, err)
	}
	for i := range addrs {
		if err := netlink.AddrDel(link, &addrs[i]); err != nil {
			return fmt.Errorf("failed to take %s from %s: %w", addrs[i].IPNet, ifname, err)
		}
	}
	return nil
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
