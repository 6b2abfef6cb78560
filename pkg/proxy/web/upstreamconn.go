package web

import (
	"crypto/tls"
	"errors"
	"net"
	"syscall"

	"github.com/tinkerbell/stack/pkg/proxy/sock"
)

// upstreamConn is a connection to an endpoint, below TLS.
type upstreamConn struct {
	net.Conn
	received sock.Buffers // the bound of what is received
	bodiless bool         // the request is
}

// upstreamBelow is the connection to the endpoint below TLS.
func upstreamBelow(c net.Conn) *upstreamConn {
	if secure, ok := c.(*tls.Conn); ok {
		c = secure.NetConn()
	}
	u, _ := c.(*upstreamConn)
	return u
}

// Write implements net.Conn. An endpoint may have answered and gone before it had all of a body: the answer is there to
// be read, which http.Transport does not do after a write that failed. What is lost is found by reading.
func (u *upstreamConn) Write(b []byte) (int, error) {
	n, err := u.Conn.Write(b)
	if errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) {
		return len(b), nil
	}
	return n, err
}

// CloseWrite ends our side of a stream of another protocol.
func (u *upstreamConn) CloseWrite() error { return closeWrite(u.Conn) }

func closeWrite(c net.Conn) error {
	if half, ok := c.(halfCloser); ok {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}

// Close implements net.Conn. It resets the connection of a request without a body, which leaves nothing that the
// endpoint could lose by that: it would hold its local port for a minute more (TIME-WAIT, RFC 9293 section 3.6.1).
func (u *upstreamConn) Close() error {
	if c, ok := u.Conn.(*net.TCPConn); ok && u.bodiless {
		_ = c.SetLinger(0)
	}
	return u.Conn.Close()
}

// resize sets the bound of what an endpoint sends, which is small from the start.
func (u *upstreamConn) resize(size sock.Buffers) {
	if u.received == size {
		return
	}
	if c, ok := u.Conn.(syscall.Conn); ok {
		sock.SetReceiveBuffer(c, size)
		u.received = size
	}
}
