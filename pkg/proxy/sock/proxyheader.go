package sock

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/pires/go-proxyproto"
	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/pkg/proxy/loop"
)

// headerTimeout bounds the wait for a PROXY header, which its sender sends at once.
const headerTimeout = 5 * time.Second

// Header awaits the PROXY header of a connection in a loop, and takes nothing behind it. Only the loop's thread may use
// it.
type Header struct {
	loop   *loop.Loop
	fd     int
	handle loop.Handle
	since  time.Time
	done   func(source, target netip.AddrPort, err error)
}

// AwaitHeader calls done once, in the loop's thread, with the client's address and the one that it connected to; that
// may be before AwaitHeader returns. Both are invalid where the header has none, as in a load balancer's own
// connection.
func AwaitHeader(l *loop.Loop, fd int, done func(source, target netip.AddrPort, err error)) *Header {
	h := &Header{loop: l, fd: fd, since: l.Now(), done: done}
	var err error
	if h.handle, err = l.Watch(fd, loop.Stream, h); err != nil {
		h.end(netip.AddrPort{}, netip.AddrPort{}, err)
		return h
	}
	l.Tick(func(now time.Time) bool {
		if h.done != nil && now.Sub(h.since) >= headerTimeout {
			h.end(netip.AddrPort{}, netip.AddrPort{}, os.ErrDeadlineExceeded)
		}
		return h.done != nil
	})
	return h
}

// Stop ends the wait: done is not called any more. A nil Header may be stopped.
func (h *Header) Stop() {
	if h != nil && h.done != nil {
		h.loop.Release(h.fd, h.handle)
		h.done = nil
	}
}

func (h *Header) end(source, target netip.AddrPort, err error) {
	done := h.done
	h.Stop()
	done(source, target, err)
}

// Ready implements loop.Watcher.
func (h *Header) Ready(e loop.Events) {
	var source, target netip.AddrPort
	buffer := h.loop.Buffer()
	n, _, err := unix.Recvfrom(h.fd, buffer, unix.MSG_PEEK)
	if errors.Is(err, unix.EAGAIN) {
		return
	}
	if err == nil {
		if n = headerLength(buffer[:n]); n == 0 && !e.Last() {
			return
		}
		source, target, err = readHeader(buffer[:n])
	}
	if err == nil {
		_, err = Read(h.fd, buffer[:n])
	}
	h.end(source, target, err)
}

const (
	signature1, signature2 = "PROXY ", "\r\n\r\n\x00\r\nQUIT\n"
	longest1, least2       = 107, 16 // bytes of a header of version 1, and of one of version 2 without addresses
)

// headerLength is the length of the PROXY header that b begins with; 0 while more of it has to come. It is len(b) if b
// can never become a header, so that the parser says what is wrong with it.
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

func readHeader(b []byte) (source, target netip.AddrPort, err error) {
	header, err := proxyproto.Read(bufio.NewReader(bytes.NewReader(b)))
	if err == nil && header.Version == 2 && !header.Command.IsLocal() { // whose addresses and more are to be ignored
		err = checkTLVs(b)
	}
	if err != nil {
		return source, target, fmt.Errorf("failed to read PROXY header: %w", err)
	}
	if source = addrPort(header.SourceAddr); header.Command.IsLocal() || !source.IsValid() {
		return netip.AddrPort{}, netip.AddrPort{}, nil
	}
	return source, addrPort(header.DestinationAddr), nil
}

var errChecksum = errors.New("the checksum is wrong")

// addressLength is how long both addresses are, by the family (section 2.2 of the PROXY protocol).
var addressLength = [...]int{0, 12, 36, 216}

// checkTLVs looks at what stands behind the addresses of a header of version 2: its lengths, and its CRC-32C where it
// has one, which is that of the header with zeros in place of the checksum (section 2.2.4).
func checkTLVs(b []byte) error {
	const typeAndLength = 3
	table := crc32.MakeTable(crc32.Castagnoli)
	for at := least2 + addressLength[b[least2-3]>>4]; at < len(b); {
		if len(b)-at < typeAndLength {
			return proxyproto.ErrTruncatedTLV
		}
		kind, value := proxyproto.PP2Type(b[at]), b[at+typeAndLength:]
		n := int(binary.BigEndian.Uint16(b[at+1:]))
		if at += typeAndLength + n; at > len(b) {
			return proxyproto.ErrTruncatedTLV
		}
		if kind == proxyproto.PP2_TYPE_CRC32C {
			sum := crc32.Update(crc32.Checksum(b[:at-n], table), table, make([]byte, n))
			sum = crc32.Update(sum, table, b[at:])
			if !bytes.Equal(value[:n], binary.BigEndian.AppendUint32(nil, sum)) {
				return errChecksum
			}
		}
	}
	return nil
}

// WriteProxyHeader writes a PROXY header, version 1 or 2.
func WriteProxyHeader(w io.Writer, version int, source, target netip.AddrPort) error {
	header := proxyproto.HeaderProxyFromAddrs(byte(version),
		net.TCPAddrFromAddrPort(source), net.TCPAddrFromAddrPort(target))
	_, err := header.WriteTo(w)
	return err
}

// addrPort is a TCP address, IPv4 as such; invalid for any other.
func addrPort(addr net.Addr) netip.AddrPort {
	if tcp, ok := addr.(*net.TCPAddr); ok {
		a := tcp.AddrPort()
		return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
	}
	return netip.AddrPort{}
}
