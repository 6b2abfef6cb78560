package lab

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"time"

	"github.com/mdlayher/ndp"
)

// managed is the argument of the ra helper for a site of IPv6.
const managed = "managed"

// serveRA is the ra helper: it sends router advertisements on the LAN each second. iPXE waits up to 13 s for one
// before it goes on with IPv4.
func serveRA(args []string) error {
	ifi, err := net.InterfaceByName(bridgeLAN)
	if err != nil {
		return err
	}
	conn, err := listenNDP(ifi, 5*time.Second)
	if err != nil {
		return err
	}
	message := advertisement(ifi, slices.Contains(args, managed))
	everyNode := netip.IPv6LinkLocalAllNodes().WithZone(ifi.Name)
	failures := 0
	for ; ; time.Sleep(time.Second) {
		if err := conn.WriteTo(message, nil, everyNode); err != nil {
			if failures++; failures > 10 {
				return err
			}
			fmt.Fprintln(os.Stderr, err)
			continue
		}
		failures = 0
	}
}

// advertisement is a router advertisement (RFC 4861 section 4.2): one prefix for stateless addresses, no default
// router, no DHCPv6. Of a managed link: the flags M and O, and no stateless addresses.
func advertisement(ifi *net.Interface, managed bool) *ndp.RouterAdvertisement {
	const prefixLifetime = time.Hour
	return &ndp.RouterAdvertisement{
		CurrentHopLimit: 64, ManagedConfiguration: managed, OtherConfiguration: managed,
		Options: []ndp.Option{
			&ndp.LinkLayerAddress{Direction: ndp.Source, Addr: ifi.HardwareAddr},
			&ndp.PrefixInformation{
				Prefix: LAN6.Masked().Addr(), PrefixLength: uint8(LAN6.Bits()), OnLink: true,
				AutonomousAddressConfiguration: !managed, ValidLifetime: prefixLifetime, PreferredLifetime: prefixLifetime,
			},
		},
	}
}

// listenNDP opens a socket on the interface's link-local address, from which routers advertise (RFC 4861 section
// 6.1.2). The kernel detects first whether the address is unique.
func listenNDP(ifi *net.Interface, timeout time.Duration) (*ndp.Conn, error) {
	for deadline := time.Now().Add(timeout); ; time.Sleep(50 * time.Millisecond) {
		conn, _, err := ndp.Listen(ifi, ndp.LinkLocal)
		if err == nil {
			return conn, nil
		}
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("failed to use a link-local address of %s within %s: %w", ifi.Name, timeout, err)
		}
	}
}
