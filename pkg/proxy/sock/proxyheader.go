package sock

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/pires/go-proxyproto"
)

// HeaderTimeout bounds the wait for a PROXY header, which its sender sends at once.
const HeaderTimeout = 5 * time.Second

// ReadProxyHeader reads the PROXY header, version 1 or 2, at the beginning of a connection. It returns the client's
// address, the address that the client connected to, and the bytes read behind the header. Both addresses are invalid
// where the header has none, as in a load balancer's health check.
func ReadProxyHeader(conn net.Conn) (source, target netip.AddrPort, early []byte, err error) {
	if err := conn.SetReadDeadline(time.Now().Add(HeaderTimeout)); err != nil {
		return source, target, nil, err
	}
	reader := bufio.NewReaderSize(conn, 1024)
	if source, target, err = readHeader(reader); err != nil {
		return source, target, nil, err
	}
	early, err = reader.Peek(reader.Buffered())
	return source, target, slices.Clone(early), errors.Join(err, conn.SetReadDeadline(time.Time{}))
}

// ParseProxyHeader is ReadProxyHeader for the bytes that have come so far. n is the length of the header; 0 without an
// error: it is not whole yet.
func ParseProxyHeader(b []byte) (source, target netip.AddrPort, n int, err error) {
	if n = headerLength(b); n == 0 {
		return source, target, 0, nil
	}
	source, target, err = readHeader(bufio.NewReaderSize(bytes.NewReader(b[:n]), 1024))
	return source, target, n, err
}

const (
	signature1, signature2 = "PROXY ", "\r\n\r\n\x00\r\nQUIT\n"
	longest1, least2       = 107, 16 // bytes of a header of version 1, and of one of version 2 without addresses
)

// headerLength is the length of the PROXY header that b begins with; 0 if it is not whole. It is all of b where that
// cannot become a header.
func headerLength(b []byte) int {
	text := string(b[:min(len(b), least2)])
	switch {
	case strings.HasPrefix(text, signature1):
		if end := bytes.IndexByte(b, '\n'); end >= 0 || len(b) < longest1 {
			return end + 1
		}
	case strings.HasPrefix(text, signature2) && len(b) >= least2:
		n := int(binary.BigEndian.Uint16(b[least2-2:]))
		if n <= int(proxyproto.MaxV2HeaderSize) {
			if n += least2; n > len(b) {
				return 0
			}
			return n
		}
	case strings.HasPrefix(signature1, text), strings.HasPrefix(signature2, text),
		strings.HasPrefix(text, signature2):
		return 0
	}
	return len(b)
}

func readHeader(reader *bufio.Reader) (source, target netip.AddrPort, err error) {
	header, err := proxyproto.Read(reader)
	if err != nil {
		return source, target, fmt.Errorf("failed to read PROXY header: %w", err)
	}
	if source = AddrPort(header.SourceAddr); header.Command.IsLocal() || !source.IsValid() {
		return netip.AddrPort{}, target, nil
	}
	return source, AddrPort(header.DestinationAddr), nil
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
