package lab

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
)

// Rack is the network behind a router of [Lab.AddRouter], and RackGatewayIP that router's address there.
var (
	Rack          = netip.MustParsePrefix("198.51.100.0/24")
	RackGatewayIP = netip.MustParseAddr("198.51.100.1")
)

// RouterIP is the router's address in [LAN].
var RouterIP = netip.MustParseAddr("192.0.2.20")

// RouterLink is the router's interface on [Rack]; its eth0 is on [LAN].
const RouterLink = "rack0"

// AddRouter puts a router on the LAN, with [Rack] behind it, as a switch at the top of a rack is. Machines behind it
// and pods reach each other.
func (l *Lab) AddRouter(name string) (role string, err error) {
	if role, err = l.AddHost(name, nil); err != nil {
		return "", err
	}
	if err := l.Configure(role, netip.PrefixFrom(RouterIP, LAN.Bits()), GatewayIP); err != nil {
		return "", err
	}
	for _, step := range []struct {
		role string
		do   func() error
	}{
		{role, func() error {
			if err := addBridge(RouterLink); err != nil {
				return err
			}
			return addAddr(RouterLink, netip.PrefixFrom(RackGatewayIP, Rack.Bits()))
		}},
		{role, forwards},
		{RoleLAN, forwards},
		{RoleNode, func() error { return route(Rack, RouterIP) }},
		{RoleLAN, func() error { return route(Rack, RouterIP) }},
		{RoleLAN, func() error { return route(Pods, NodeIP) }},
		// Servers and agents that read frames want whole checksums.
		{role, checksumsInSoftware},
		{RolePod, checksumsInSoftware},
	} {
		if err := l.Do(step.role, step.do); err != nil {
			return "", fmt.Errorf("failed to make router %s: %w", name, err)
		}
	}
	return role, nil
}

// AddHostBehind is [Lab.AddHost] for a machine behind a router.
func (l *Lab) AddHostBehind(router, name string, mac net.HardwareAddr) (role string, err error) {
	role = "host-" + name
	if err := l.addNamespace(role); err != nil {
		return "", err
	}
	port, err := l.portName()
	if err != nil {
		return "", err
	}
	if err := l.cable(router, port, RouterLink, role, "eth0", mac); err != nil {
		return "", fmt.Errorf("failed to connect host %s: %w", name, err)
	}
	return role, l.Do(role, checksumsInSoftware)
}

func forwards() error { return setSysctl("net/ipv4/ip_forward", "1") }

func route(to netip.Prefix, via netip.Addr) error {
	if err := netlink.RouteReplace(&netlink.Route{Dst: ipNet(to), Gw: via.AsSlice()}); err != nil {
		return fmt.Errorf("failed to add route to %s via %s: %w", to, via, err)
	}
	return nil
}
