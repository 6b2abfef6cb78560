package datagram

import (
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/pkg/mmsg"
)

// Peer is the other end of a datagram: an address, never an IPv4-mapped one, and a port. Zone is the interface
// index of a link-local address and else zero; it is a number here because [netip.Addr] keeps it as a string.
type Peer struct {
	netip.AddrPort
	Zone uint32
}

func peerOf(s *mmsg.Sockaddr) Peer { return Peer{AddrPort: s.AddrPort(), Zone: s.Scope()} }

// addrOf is a peer's address as the socket takes it: an IPv6 socket takes an IPv4 address as an IPv4-mapped one.
func (s *Socket) addrOf(p Peer) netip.AddrPort {
	if s.family == unix.AF_INET6 && p.Addr().Is4() {
		return netip.AddrPortFrom(netip.AddrFrom16(p.Addr().As16()), p.Port())
	}
	return p.AddrPort
}
