package sock

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// Addresses are those of package syscall: unix.Getsockname and unix.Accept4 ask the kernel for each socket's protocol.

// family is the address family of a socket that connects to addr.
func family(addr netip.AddrPort) int {
	if addr.Addr().Unmap().Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// sockaddr is an address in the kernel's form. It fails if the zone is not a link of this network namespace: without
// its scope, the kernel would look for the address on another link.
func sockaddr(addr netip.AddrPort) (syscall.Sockaddr, error) {
	if ip := addr.Addr().Unmap(); ip.Is4() {
		return &syscall.SockaddrInet4{Port: int(addr.Port()), Addr: ip.As4()}, nil
	}
	six := &syscall.SockaddrInet6{Port: int(addr.Port()), Addr: addr.Addr().As16()}
	if zone := addr.Addr().Zone(); zone != "" {
		if index, err := strconv.ParseUint(zone, 10, 32); err == nil {
			six.ZoneId = uint32(index)
		} else if link, err := net.InterfaceByName(zone); err == nil {
			six.ZoneId = uint32(link.Index)
		} else {
			return nil, fmt.Errorf("failed to find link %s: %w", zone, err)
		}
	}
	return six, nil
}

// addrPortOf is the kernel's address without zone, IPv4 as such.
func addrPortOf(s syscall.Sockaddr) netip.AddrPort {
	switch s := s.(type) {
	case *syscall.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(s.Addr), uint16(s.Port))
	case *syscall.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(s.Addr).Unmap(), uint16(s.Port))
	}
	return netip.AddrPort{}
}
