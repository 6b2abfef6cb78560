package datagram

import (
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Transparent lets the socket send from addresses that are not its host's (IP_TRANSPARENT). It needs
// CAP_NET_ADMIN or CAP_NET_RAW.
func (s *Socket) Transparent() error {
	o := option{unix.IPPROTO_IP, unix.IP_TRANSPARENT, 1}
	if s.family == unix.AF_INET6 {
		o = option{unix.IPPROTO_IPV6, unix.IPV6_TRANSPARENT, 1}
	}
	return s.set(o)
}

// mayBeTransparent tells whether this process may have transparent sockets.
func mayBeTransparent() error {
	s, err := open(netip.IPv4Unspecified())
	if err != nil {
		return err
	}
	defer s.Close()
	return s.Transparent()
}

// CanSpeakFor tells whether a client's address can be the source of datagrams to an endpoint: it has the same family,
// and is not link-local.
func CanSpeakFor(client, endpoint netip.Addr) bool {
	return client.Is4() == endpoint.Unmap().Is4() && client.IsGlobalUnicast()
}

// openAs makes a transparent socket that sends from a client's address, and from the client's port unless another
// socket of this process has both. It receives the answers to them that the network brings here (see [CatchAnswers]).
func openAs(client netip.AddrPort) (*Socket, error) {
	s, err := open(client.Addr())
	if err != nil {
		return nil, fmt.Errorf("failed to open udp socket: %w", err)
	}
	if err := s.Transparent(); err != nil {
		s.Close()
		return nil, fmt.Errorf("failed to open udp socket with a client's address: %w", err)
	}
	err = s.bind(client.Addr(), client.Port())
	if errors.Is(err, unix.EADDRINUSE) || errors.Is(err, unix.EACCES) { // a port below 1024 may be forbidden
		err = s.bind(client.Addr(), 0)
	}
	if err != nil {
		s.Close()
		return nil, fmt.Errorf("failed to bind udp socket to client %s: %w", client, err)
	}
	return s, nil
}
