package lab

import (
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"slices"
	"time"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv6"
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
	// RFC 4861 section 6.1.2: from a link-local address, with hop limit 255, or hosts ignore it.
	source, err := linkLocal(ifi, 5*time.Second)
	if err != nil {
		return err
	}
	conn, err := icmp.ListenPacket("ip6:ipv6-icmp", source.String()+"%"+ifi.Name)
	if err != nil {
		return err
	}
	p := conn.IPv6PacketConn()
	if err := p.SetMulticastHopLimit(255); err != nil {
		return err
	}
	if err := p.SetMulticastInterface(ifi); err != nil {
		return err
	}
	body := &icmp.RawBody{Data: advertisement(ifi, slices.Contains(args, managed))}
	message := icmp.Message{Type: ipv6.ICMPTypeRouterAdvertisement, Body: body}
	packet, err := message.Marshal(nil) // the kernel fills in the checksum
	if err != nil {
		return err
	}
	everyNode := &net.IPAddr{IP: net.IPv6linklocalallnodes, Zone: ifi.Name}
	failures := 0
	for ; ; time.Sleep(time.Second) {
		if _, err := conn.WriteTo(packet, everyNode); err != nil {
			if failures++; failures > 10 {
				return err
			}
			fmt.Fprintln(os.Stderr, err)
			continue
		}
		failures = 0
	}
}

// advertisement is the body of a router advertisement (RFC 4861 section 4.2): one prefix for stateless
// addresses, no default router, no DHCPv6. Of a managed link: the flags M and O, and no stateless addresses.
func advertisement(ifi *net.Interface, managed bool) []byte {
	const routerLifetime, prefixLifetime = 0, 3600
	flags, prefixFlags := byte(0), byte(0xc0) // on-link, autonomous; section 4.6.2
	if managed {
		flags, prefixFlags = 0xc0, 0x80
	}
	b := []byte{64, flags} // hop limit
	b = binary.BigEndian.AppendUint16(b, routerLifetime)
	b = append(b, make([]byte, 8)...) // reachable time and retransmission timer: unspecified
	b = append(b, 1, 1)               // source link-layer address, section 4.6.1
	b = append(b, ifi.HardwareAddr...)
	b = append(b, 3, 4, byte(LAN6.Bits()), prefixFlags)
	b = binary.BigEndian.AppendUint32(b, prefixLifetime)
	b = binary.BigEndian.AppendUint32(b, prefixLifetime)
	b = append(b, 0, 0, 0, 0)
	prefix := LAN6.Masked().Addr().As16()
	return append(b, prefix[:]...)
}

// linkLocal waits for the interface's link-local address to be usable: it has to be detected as unique first.
func linkLocal(ifi *net.Interface, timeout time.Duration) (net.IP, error) {
	for deadline := time.Now().Add(timeout); ; time.Sleep(50 * time.Millisecond) {
		addrs, err := ifi.Addrs()
		if err != nil {
			return nil, err
		}
		for _, addr := range addrs {
			prefix, ok := addr.(*net.IPNet)
			if !ok || !prefix.IP.IsLinkLocalUnicast() || prefix.IP.To4() != nil {
				continue
			}
			probe, err := net.ListenUDP("udp6", &net.UDPAddr{IP: prefix.IP, Zone: ifi.Name})
			if err == nil {
				_ = probe.Close()
				return prefix.IP, nil
			}
		}
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("failed to find a link-local address on %s within %s", ifi.Name, timeout)
		}
	}
}
