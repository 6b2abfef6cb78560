package web

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/tinkerbell/stack/pkg/proxy/shaper"
	"github.com/tinkerbell/stack/pkg/proxy/sock"
)

// conn is a client's connection that net/http's server serves: a chain of the socket ([wire]), the bound on stalls, and
// the route's rate, with what the server has to know, or must not see. It keeps sendfile reachable: net/http looks for
// ReadFrom on it.
type conn struct {
	stalling
	flow   shaper.Flow // of the answer
	unread unread
	idling idling
	early  []byte                    // was read before
	agreed atomic.Pointer[agreement] // nil without TLS, and before the client's hello
	// The client went on once it had seen our certificate.
	wentOn atomic.Bool

	// A request's body is being read: a deadline that passes is the client's.
	inBody atomic.Bool
	// A body whose client stalled was not read to its end: net/http would take what still arrives of it for the next
	// request. Nothing more is read then.
	spent atomic.Bool
	// An answer is under way whose end only the connection's end tells the client.
	untilEnd atomic.Bool
}

// RemoteAddr is the client's address, of the PROXY header where there was one.
func (c *conn) RemoteAddr() net.Addr { return net.TCPAddrFromAddrPort(c.peer) }

// LocalAddr implements net.Conn.
func (c *conn) LocalAddr() net.Addr { return c.socket.LocalAddr() }

// SyscallConn implements syscall.Conn.
func (c *conn) SyscallConn() (syscall.RawConn, error) {
	return c.socket.SyscallConn()
}

// CloseWrite ends the stream to the client.
func (c *conn) CloseWrite() error { return c.socket.CloseWrite() }

// SetDeadline implements net.Conn.
func (c *conn) SetDeadline(t time.Time) error {
	c.disarm(t)
	return c.socket.SetDeadline(t)
}

// SetWriteDeadline implements net.Conn.
func (c *conn) SetWriteDeadline(t time.Time) error {
	c.disarm(t)
	return c.socket.SetWriteDeadline(t)
}

// Read implements net.Conn.
func (c *conn) Read(b []byte) (int, error) {
	if len(c.early) > 0 {
		c.spoke.Store(true)
		n := copy(b, c.early)
		c.early = c.early[n:]
		c.connections.metrics.bytesIn(n)
		return n, nil
	}
	if c.spent.Load() {
		return 0, io.EOF
	}
	n, err := c.socket.Read(b)
	if !c.wentOn.Load() && c.agreed.Load() != nil {
		if n > 0 {
			c.wentOn.Store(true)
		} else if errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) {
			return 0, errCertificate
		}
	}
	err = opError("read", err)
	if n > 0 && !c.spoke.Load() {
		c.spoke.Store(true)
	}
	if err != nil && c.inBody.Load() && errors.Is(err, os.ErrDeadlineExceeded) {
		c.spent.Store(true)
	}
	c.connections.metrics.bytesIn(n)
	if !c.chargeUnread(n) {
		return 0, &net.OpError{Op: "read", Net: "tcp", Err: errNoRoom}
	}
	return n, err
}

// Write implements net.Conn.
func (c *conn) Write(b []byte) (int, error) {
	if !c.flow.Shaper.On() {
		return c.stalling.Write(b)
	}
	return c.shaped().Write(&c.stalling, b)
}

// Close implements net.Conn.
func (c *conn) Close() error {
	c.release()
	c.idling.stop()
	if c.untilEnd.Load() { // or a part of the answer would look whole
		c.socket.Reset()
		return nil
	}
	return c.socket.Close()
}

// errCertificate is what reading fails with where a client ends the connection instead of answering our certificate:
// UEFI sends no alert.
var errCertificate = errors.New("tls: client closed the connection at our certificate")

// opError is an error as net has it: net/http answers a client of which it knows no error of reading.
func opError(op string, err error) error {
	if err == nil || errors.Is(err, io.EOF) {
		return err
	}
	return &net.OpError{Op: op, Net: "tcp", Err: err}
}

// abort implements closer. Goroutines that use the connection end with an error and close it: to close it here would
// wait for each of them to be scheduled.
func (c *conn) abort() {
	c.connections.reap()
	sock.Disconnect(c)
}

// connBelow is the conn below TLS and HTTP/2; nil where there is none.
func connBelow(nc net.Conn) *conn {
	for {
		c, ok := nc.(*conn)
		if ok {
			return c
		}
		above, ok := nc.(interface{ NetConn() net.Conn })
		if !ok {
			return nil
		}
		nc = above.NetConn()
	}
}

// connKey is the key of a conn in its requests' contexts.
type connKey struct{}

func withConn(ctx context.Context, c net.Conn) context.Context {
	if under := connBelow(c); under != nil {
		return context.WithValue(ctx, connKey{}, under)
	}
	return ctx
}

// connOfRequest is the conn that a request came on; nil where it came on none, as in a test of a handler.
func connOfRequest(r *http.Request) *conn {
	c, _ := r.Context().Value(connKey{}).(*conn)
	return c
}
