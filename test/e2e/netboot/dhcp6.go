package netboot

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv6/nclient6"
)

// linkBits is the length of a link's prefix. DHCPv6 tells none; router advertisements do, and it is always this one.
const linkBits = 64

// Lease6 asks for an address by DHCPv6 as an operating system does: SOLICIT, ADVERTISE, REQUEST, REPLY. The interface
// has to be up. It sends again each second until ctx is done, and calls moved with each answer that it takes.
func Lease6(ctx context.Context, ifname string, moved func(far string)) (lease Lease, err error) {
	client, err := open6(ctx, ifname)
	if err != nil {
		return lease, err
	}
	defer func() { err = errors.Join(err, client.Close()) }()
	advertise, err := client.Solicit(ctx)
	if err != nil {
		return lease, fmt.Errorf("no ADVERTISE: %w", err)
	}
	moved("an ADVERTISE came")
	reply, err := client.Request(ctx, advertise)
	if err != nil {
		return lease, fmt.Errorf("no REPLY: %w", err)
	}
	ia := reply.Options.OneIANA()
	if ia == nil || ia.Options.OneAddress() == nil {
		return lease, fmt.Errorf("failed to use REPLY: it has no address: %s", reply.Summary())
	}
	option := ia.Options.OneAddress()
	addr, ok := netip.AddrFromSlice(option.IPv6Addr)
	if !ok {
		return lease, fmt.Errorf("failed to use REPLY: address %s", option.IPv6Addr)
	}
	lease.Addr, lease.Duration = netip.PrefixFrom(addr, linkBits), option.ValidLifetime
	lease.BootFile = reply.Options.BootFileURL()
	return lease, nil
}

// open6 waits for the interface's link-local address.
func open6(ctx context.Context, ifname string) (*nclient6.Client, error) {
	const attempts = 1 << 20 // ctx bounds them
	for {
		link, err := net.InterfaceByName(ifname)
		if err != nil {
			return nil, fmt.Errorf("failed to find interface %s: %w", ifname, err)
		}
		client, err := nclient6.New(link.Name, nclient6.WithTimeout(time.Second), nclient6.WithRetry(attempts))
		if err == nil {
			return client, nil
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("failed to open DHCPv6 client on %s: %w", ifname, err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}
