package sock

import (
	"net"
	"net/netip"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// Addresses are package syscall's: those of x/sys/unix ask the kernel of each socket which protocol it has.

// sockaddr is an address as the kernel reads it.
func sockaddr(addr netip.AddrPort) (family int, s syscall.Sockaddr) {
	if ip := addr.Addr().Unmap(); ip.Is4() {
		return unix.AF_INET, &syscall.SockaddrInet4{Port: int(addr.Port()), Addr: ip.As4()}
	}
	six := &syscall.SockaddrInet6{Port: int(addr.Port()), Addr: addr.Addr().As16()}
	if zone := addr.Addr().Zone(); zone != "" {
		if index, err := strconv.Atoi(zone); err == nil {
			six.ZoneId = uint32(index)
		} else if link, err := net.InterfaceByName(zone); err == nil {
			six.ZoneId = uint32(link.Index)
		}
	}
	return unix.AF_INET6, six
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
