package web

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"sync"
	"syscall"

	"github.com/tinkerbell/stack/pkg/proxy/sock"
)

// upstreamConn is a connection to an endpoint, below TLS. It tells of its end: an endpoint may be gone while the client
// of an upload is silent. net/http's Transport answers only when nobody reads the body any more, so that the client
// would hear of it when it goes on, or be blamed for its silence. To close the connection to the endpoint, which the
// Transport does as it ends, wakes the reader.
type upstreamConn struct {
	net.Conn
	received sock.Buffers // the bound of what is received
	bodiless bool         // the request is

	mu    sync.Mutex
	ended bool
	end   func() // of the request that has the connection
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

// onEnd notes f, to be called when the connection is closed; it calls f at once if the connection is closed already.
func (u *upstreamConn) onEnd(f func()) {
	u.mu.Lock()
	u.end = f
	ended := u.ended
	u.mu.Unlock()
	if ended {
		f()
	}
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
	u.mu.Lock()
	u.ended = true
	f := u.end
	u.mu.Unlock()
	if f != nil {
		f()
	}
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

// errLost is the error of a request of which the endpoint left a part of the body.
var errLost = errors.New("the endpoint ended the connection before it had all of the request")

// goesTo notes that a connection has been given the body. Its end wakes the reader.
func (k *retryBody) goesTo(ctx context.Context, u *upstreamConn) {
	k.given.Store(true)
	if u != nil && k.upload != nil { // a stream's reader is woken by closing the body
		u.onEnd(func() {
			if ctx.Err() != nil || k.broken() != nil || k.whole.Load() {
				return // the client has gone, for which http.Transport ends the connection; or nobody reads any more
			}
			k.closed.Store(true)
			k.deserted.Store(k.upload.wake())
		})
	}
}
