package tcp

import (
	"net/netip"
	"slices"

	"github.com/tinkerbell/stack/pkg/proxy/sock"
)

// clientAddress is the address of the client and the one that it connected to: the two ends of the connection, or,
// where the peer is a load balancer of ours, what its PROXY header says. Bytes read beyond the header are kept in
// early.
func (s *session) clientAddress() (source, target netip.AddrPort, err error) {
	if s.settings.SendProxy > 0 {
		target = sock.AddrPort(s.client.LocalAddr())
	}
	if !contains(s.settings.AcceptProxy, s.peer.Addr()) {
		return s.peer, target, nil
	}
	from, to, early, err := sock.ReadProxyHeader(s.client)
	if err != nil {
		return s.peer, target, err
	}
	s.early = early
	if !from.IsValid() {
		return s.peer, target, nil // the load balancer's own health check
	}
	return from, to, nil
}

func contains(prefixes []netip.Prefix, addr netip.Addr) bool {
	return slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(addr) })
}
