package datagram

import (
	"encoding/binary"
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Peer is the other end of a datagram: an address, never an IPv4-mapped one, and a port. Zone is the interface
// index of a link-local address and else zero; it is a number here because [netip.Addr] keeps it as a string.
type Peer struct {
	netip.AddrPort
	Zone uint32
}

// sockaddr is a socket address of either family as the kernel reads and writes it.
type sockaddr struct {
	raw unix.RawSockaddrInet6 // the larger of the two
	len uint32
}

// networkOrder turns a port into the kernel's byte order, and back.
func networkOrder(port uint16) uint16 {
	var b [2]byte
	binary.BigEndian.PutUint16(b[:], port)
	return binary.NativeEndian.Uint16(b[:])
}

// set writes p in the form a socket of the given family wants: on an IPv6 socket an IPv4 peer is a mapped one.
func (s *sockaddr) set(family int, p Peer) {
	if family == unix.AF_INET {
		v4 := (*unix.RawSockaddrInet4)(unsafe.Pointer(&s.raw))
		*v4 = unix.RawSockaddrInet4{Family: unix.AF_INET, Port: networkOrder(p.Port())}
		if p.Addr().Is4() {
			v4.Addr = p.Addr().As4()
		}
		s.len = unix.SizeofSockaddrInet4
		return
	}
	s.raw = unix.RawSockaddrInet6{
		Family:   unix.AF_INET6,
		Port:     networkOrder(p.Port()),
		Addr:     p.Addr().As16(),
		Scope_id: p.Zone,
	}
	s.len = unix.SizeofSockaddrInet6
}

func (s *sockaddr) peer() Peer {
	switch s.raw.Family {
	case unix.AF_INET:
		v4 := (*unix.RawSockaddrInet4)(unsafe.Pointer(&s.raw))
		return Peer{AddrPort: netip.AddrPortFrom(netip.AddrFrom4(v4.Addr), networkOrder(v4.Port))}
	case unix.AF_INET6:
		return Peer{
			AddrPort: netip.AddrPortFrom(netip.AddrFrom16(s.raw.Addr).Unmap(), networkOrder(s.raw.Port)),
			Zone:     s.raw.Scope_id,
		}
	}
	return Peer{}
}

func (s *sockaddr) pointer() unsafe.Pointer { return unsafe.Pointer(&s.raw) }
