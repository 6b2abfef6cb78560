package web

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"sync"
)

// An endpoint may be gone while the client of an upload is silent. net/http's Transport answers only when nobody reads
// the body any more, so that the client would hear of it when it goes on, or be blamed for its silence. To close the
// connection to the endpoint, which the Transport does as it ends, wakes the reader.

// uploadConn is a connection to an endpoint that tells of its end.
type uploadConn struct {
	net.Conn

	mu    sync.Mutex
	ended bool
	end   func() // of the request that has the connection
}

// onEnd notes f, to be called when the connection is closed; it calls f at once if the connection is closed already.
func (c *uploadConn) onEnd(f func()) {
	c.mu.Lock()
	c.end = f
	ended := c.ended
	c.mu.Unlock()
	if ended {
		f()
	}
}

// CloseWrite ends our side of a stream of another protocol.
func (c *uploadConn) CloseWrite() error {
	if half, ok := c.Conn.(halfCloser); ok {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}

// Close implements net.Conn.
func (c *uploadConn) Close() error {
	c.mu.Lock()
	c.ended = true
	f := c.end
	c.mu.Unlock()
	if f != nil {
		f()
	}
	return c.Conn.Close()
}

// tellingEnd wraps a new connection.
func tellingEnd(c net.Conn) net.Conn { return &uploadConn{Conn: c} }

// errLost is the error of a request of which the endpoint left a part of the body.
var errLost = errors.New("the endpoint ended the connection before it had all of the request")

// goesTo notes that a connection has been given the body. Its end wakes the reader.
func (k *retryBody) goesTo(ctx context.Context, conn net.Conn) {
	k.given.Store(true)
	if secure, ok := conn.(*tls.Conn); ok {
		conn = secure.NetConn()
	}
	if c, ok := conn.(*uploadConn); ok && k.upload != nil { // a stream's reader is woken by closing the body
		c.onEnd(func() {
			if ctx.Err() != nil || k.broken() != nil {
				return // it is the client that has gone: http.Transport ends the connection for that
			}
			k.closed.Store(true)
			k.deserted.Store(k.upload.wake())
		})
	}
}
