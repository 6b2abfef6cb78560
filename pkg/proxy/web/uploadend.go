package web

import (
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"net/http/httptrace"
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

// onEnd has f called when the connection is closed; at once where it was.
func (c *uploadConn) onEnd(f func()) {
	c.mu.Lock()
	c.end = f
	ended := c.ended
	c.mu.Unlock()
	if ended {
		f()
	}
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

// traceUpload notes that a connection has been given a request's body, and wakes the body's reader when it ends.
func traceUpload(r *http.Request, k *retryBody) *httptrace.ClientTrace {
	client := clientBody(r)
	return &httptrace.ClientTrace{GotConn: func(got httptrace.GotConnInfo) {
		k.given.Store(true)
		below := got.Conn
		if secure, ok := below.(*tls.Conn); ok {
			below = secure.NetConn()
		}
		if c, ok := below.(*uploadConn); ok && client != nil {
			c.onEnd(func() {
				if r.Context().Err() != nil || k.broken() != nil {
					return // it is the client that has gone: the Transport ends the connection for that
				}
				k.closed.Store(true)
				k.lost.Store(client.wake())
			})
		}
	}}
}

// clientBody is the body of a client's request in HTTP/1.1; nil where it has none. A stream's is woken by closing it.
func clientBody(r *http.Request) *stallReader {
	u, _ := r.Context().Value(useKey{}).(*use)
	if u == nil {
		return nil
	}
	return u.client
}
