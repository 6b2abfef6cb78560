package sock

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/pires/go-proxyproto"
)

// headerTimeout bounds the wait for a PROXY header, which its sender sends at once.
const headerTimeout = 5 * time.Second

// ReadProxyHeader reads the PROXY header, version 1 or 2, at the beginning of a connection. It returns the client's
// address, the address that the client connected to, and the bytes read behind the header. Both addresses are invalid
// where the header has none, as in a load balancer's health check.
func ReadProxyHeader(conn net.Conn) (source, target netip.AddrPort, early []byte, err error) {
	if err := conn.SetReadDeadline(time.Now().Add(headerTimeout)); err != nil {
		return source, target, nil, err
	}
	reader := bufio.NewReaderSize(conn, 1024)
	header, err := proxyproto.Read(reader)
	if err != nil {
		return source, target, nil, fmt.Errorf("failed to read PROXY header: %w", err)
	}
	if source = AddrPort(header.SourceAddr); header.Command.IsLocal() || !source.IsValid() {
		source = netip.AddrPort{}
	} else {
		target = AddrPort(header.DestinationAddr)
	}
	early, err = reader.Peek(reader.Buffered())
	return source, target, slices.Clone(early), errors.Join(err, conn.SetReadDeadline(time.Time{}))
}

// WriteProxyHeader writes a PROXY header, version 1 or 2.
func WriteProxyHeader(w io.Writer, version int, source, target netip.AddrPort) error {
	header := proxyproto.HeaderProxyFromAddrs(byte(version),
		net.TCPAddrFromAddrPort(source), net.TCPAddrFromAddrPort(target))
	_, err := header.WriteTo(w)
	return err
}

// AddrPort is a TCP address, IPv4 as such; invalid for any other.
func AddrPort(addr net.Addr) netip.AddrPort {
	if tcp, ok := addr.(*net.TCPAddr); ok {
		a := tcp.AddrPort()
		return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
	}
	return netip.AddrPort{}
}
