package mmsg

import (
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Sockaddr is the kernel's form of an IPv4, IPv6 or link-layer address.
type Sockaddr struct {
	raw unix.RawSockaddrInet6 // the largest of the three
	n   uint32
}

// Set writes an address and port. An IPv6 socket takes IPv4 addresses as IPv4-mapped ones. scope is the index of the
// link of a link-local address.
func (s *Sockaddr) Set(to netip.AddrPort, scope uint32) {
	if to.Addr().Is4() {
		*(*unix.RawSockaddrInet4)(unsafe.Pointer(&s.raw)) = unix.RawSockaddrInet4{
			Family: unix.AF_INET, Port: Htons(to.Port()), Addr: to.Addr().As4(),
		}
		s.n = unix.SizeofSockaddrInet4
		return
	}
	s.raw = unix.RawSockaddrInet6{
		Family: unix.AF_INET6, Port: Htons(to.Port()), Addr: to.Addr().As16(), Scope_id: scope,
	}
	s.n = unix.SizeofSockaddrInet6
}

// setLink writes the address of a frame that a packet socket sends by a link. protocol is the frame's EtherType, in
// network order.
func (s *Sockaddr) setLink(index int, protocol uint16) {
	*s.link() = unix.RawSockaddrLinklayer{Family: unix.AF_PACKET, Protocol: protocol, Ifindex: int32(index)}
	s.n = unix.SizeofSockaddrLinklayer
}

// AddrPort returns the address and port, an IPv4-mapped address as the IPv4 one. It has no zone: see Scope.
func (s *Sockaddr) AddrPort() netip.AddrPort {
	switch s.raw.Family {
	case unix.AF_INET:
		v4 := (*unix.RawSockaddrInet4)(unsafe.Pointer(&s.raw))
		return netip.AddrPortFrom(netip.AddrFrom4(v4.Addr), Ntohs(v4.Port))
	case unix.AF_INET6:
		return netip.AddrPortFrom(netip.AddrFrom16(s.raw.Addr).Unmap(), Ntohs(s.raw.Port))
	}
	return netip.AddrPort{}
}

// Scope is the index of the link of a link-local address, else 0.
func (s *Sockaddr) Scope() uint32 {
	if s.raw.Family != unix.AF_INET6 {
		return 0
	}
	return s.raw.Scope_id
}

func (s *Sockaddr) link() *unix.RawSockaddrLinklayer {
	return (*unix.RawSockaddrLinklayer)(unsafe.Pointer(&s.raw))
}

// Pointer is the address for a system call such as sendto(2), Len its length as Set wrote it.
func (s *Sockaddr) Pointer() unsafe.Pointer { return unsafe.Pointer(&s.raw) }

// Len is the length in bytes of what Set has written.
func (s *Sockaddr) Len() uint32 { return s.n }
