package web

import (
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/tinkerbell/stack/internal/loglimit"
	"github.com/tinkerbell/stack/pkg/proxy/admission"
	"github.com/tinkerbell/stack/pkg/proxy/sock"
)

// listener applies the front's limits.
type listener struct {
	socket   *sock.Listener
	settings atomic.Pointer[Settings]
	server   func() *server // of new connections
	metrics  *routeMetrics
	log      *slog.Logger
	lines    *loglimit.Clients
	room     *admission.Route

	tls *tls.Config // asks the front for a route's

	conns sock.Conns[*charge]

	reaping atomic.Bool // a timer is set to close what was given up
}

// count counts a connection that was accepted, and applies the limits on their number; false where there are too many.
func (l *listener) count(c *plainConn) bool {
	s, client := l.settings.Load(), c.peer.Addr()
	if c.header { // which tells the client later
		client = netip.Addr{}
	}
	c.served = c
	// A server that was replaced gets no more connections from when it counts those that it has.
	err := l.conns.Add(c.charge, client, s.MaxConnections, s.MaxPerClient, func() { c.server = l.server() })
	switch {
	case errors.Is(err, sock.ErrFull):
		l.metrics.refused("limit")
		return false
	case err != nil:
		l.metrics.refused("client_limit")
		return false
	}
	l.metrics.opened()
	return true
}

// move counts and charges a connection for the client that its PROXY header has told; false where that has too many.
func (c *charge) move(client netip.Addr) bool {
	l := c.listener
	if !l.conns.Count(c, client, l.settings.Load().MaxPerClient) {
		l.metrics.refused("client_limit")
		return false
	}
	why := c.lease.Move(client)
	if why != admission.Admitted {
		l.metrics.refused(why.String())
	}
	return why == admission.Admitted
}

// stall is how long a client may take nothing of an answer.
func (l *listener) stall() time.Duration { return l.settings.Load().Stall }

// pace has the kernel space the packets out, so that one machine with a fast link does not starve the others.
func (l *listener) pace(fd int, bytesPerSecond int64) {
	if err := sock.SetPace(fd, bytesPerSecond); err != nil && l.lines.Allow(netip.Addr{}, "pace") {
		l.log.Warn("failed to pace connection", "error", err)
	}
}

// conn is a client's connection that net/http's server serves. It counts bytes, bounds stalls, and keeps sendfile
// reachable: net/http looks for ReadFrom on it.
type conn struct {
	*charge
	socket *sock.Socket
	unread unread
	idling idling
	// turnedDown are its requests for which there was no room; multiplexed is HTTP/2; switched, another protocol, whose
	// answer's length is not noted: its socket keeps small buffers, and is written to by another goroutine.
	turnedDown  atomic.Int32
	multiplexed atomic.Bool
	switched    atomic.Bool
	entering    sync.Mutex         // of HTTP/2's streams
	answer      int64              // bytes written of the answer
	buffers     sock.StreamBuffers // of it
	stall       stall
	shaping     shaping                   // of the answer
	agreed      atomic.Pointer[agreement] // nil without TLS

	// A body whose client stalled was not read to its end: net/http would take what still comes of it for the next
	// request. Nothing more is read then.
	inBody, spent atomic.Bool
	// An answer is under way whose end only the connection's end tells the client.
	untilEnd atomic.Bool

	early []byte // was read before
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
func (c *conn) SetDeadline(t time.Time) error { return c.socket.SetDeadline(t) }

// SetWriteDeadline implements net.Conn.
func (c *conn) SetWriteDeadline(t time.Time) error { return c.socket.SetWriteDeadline(t) }

// Read implements net.Conn.
func (c *conn) Read(b []byte) (int, error) {
	if len(c.early) > 0 {
		c.spoke.Store(true)
		n := copy(b, c.early)
		c.early = c.early[n:]
		c.listener.metrics.bytesIn(n)
		return n, nil
	}
	if c.spent.Load() {
		return 0, io.EOF
	}
	n, err := c.socket.Read(b)
	err = opError("read", err)
	if n > 0 && !c.spoke.Load() {
		c.spoke.Store(true)
	}
	if err != nil && c.inBody.Load() && errors.Is(err, os.ErrDeadlineExceeded) {
		c.spent.Store(true)
	}
	c.listener.metrics.bytesIn(n)
	if !c.received(n) {
		return 0, &net.OpError{Op: "read", Net: "tcp", Err: errNoRoom}
	}
	return n, err
}

// Write implements net.Conn.
func (c *conn) Write(b []byte) (int, error) {
	if c.shaping.shaper.On() {
		return c.writeShaped(b)
	}
	return c.write(b)
}

func (c *conn) write(b []byte) (total int, err error) {
	for {
		if err := c.arm(); err != nil {
			return total, err
		}
		c.lease.Touch()
		n, err := c.socket.Write(b[total:])
		total += n
		c.listener.metrics.bytesOut(int64(n))
		c.answered(int64(n))
		if !c.slow(int64(n), err) {
			return total, err
		}
	}
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

// opError is an error as net has it: net/http answers a client of which it knows no error of reading.
func opError(op string, err error) error {
	if err == nil || errors.Is(err, io.EOF) {
		return err
	}
	return &net.OpError{Op: op, Net: "tcp", Err: err}
}
