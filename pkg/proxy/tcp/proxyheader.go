package tcp

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"github.com/pires/go-proxyproto"
)

// headerTimeout bounds the wait for a PROXY header, which its sender sends at once.
const headerTimeout = 5 * time.Second

// clientAddress is the address of the client and the one that it connected to: the two ends of the connection, or,
// where the peer is a load balancer of ours, what its PROXY header says. Bytes read beyond the header are kept in
// early.
func (s *session) clientAddress() (source, target netip.AddrPort, err error) {
	if s.settings.SendProxy > 0 {
		target = s.client.address(syscall.Getsockname)
	}
	if !contains(s.settings.AcceptProxy, s.peer.Addr()) {
		return s.peer, target, nil
	}
	header, early, err := ReadProxyHeader(s.client)
	if err != nil {
		return s.peer, target, err
	}
	s.early = early
	from, to := addrPort(header.SourceAddr), addrPort(header.DestinationAddr)
	if header.Command.IsLocal() || !from.IsValid() {
		return s.peer, target, nil // the load balancer's own health check
	}
	return from, to, nil
}

// ReadProxyHeader reads the PROXY header, version 1 or 2, that a connection begins with, and returns what was read
// beyond it.
func ReadProxyHeader(conn net.Conn) (header *proxyproto.Header, early []byte, err error) {
	if err := conn.SetReadDeadline(time.Now().Add(headerTimeout)); err != nil {
		return nil, nil, err
	}
	reader := bufio.NewReaderSize(conn, 1024)
	header, err = proxyproto.Read(reader)
	if err != nil {
		return nil, nil, fmt.Errorf("failed to read PROXY header: %w", err)
	}
	early, err = reader.Peek(reader.Buffered())
	return header, slices.Clone(early), errors.Join(err, conn.SetReadDeadline(time.Time{}))
}

// tellClient sends the endpoint a PROXY header.
func (s *session) tellClient(server net.Conn, source, target netip.AddrPort) error {
	header := proxyproto.HeaderProxyFromAddrs(byte(s.settings.SendProxy),
		net.TCPAddrFromAddrPort(source), net.TCPAddrFromAddrPort(target))
	_, err := header.WriteTo(server)
	return err
}

func addrPort(addr net.Addr) netip.AddrPort {
	if tcp, ok := addr.(*net.TCPAddr); ok {
		a := tcp.AddrPort()
		return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
	}
	return netip.AddrPort{}
}

func contains(prefixes []netip.Prefix, addr netip.Addr) bool {
	return slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(addr) })
}
