package web

import (
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/tinkerbell/stack/internal/loglimit"
	"github.com/tinkerbell/stack/pkg/proxy/admission"
	"github.com/tinkerbell/stack/pkg/proxy/http1"
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

	conns sock.Conns[*conn]

	reaping atomic.Bool // a timer is set to close what was given up
}

// admit begins with a connection that a loop has accepted, and applies the limits on their number; nil where there are
// too many.
func (l *listener) admit(in *http1.Conn, peer netip.AddrPort) *conn {
	s := l.settings.Load()
	c := &conn{listener: l, peer: peer, stall: stall{most: s.Stall}}
	c.inLoop.Store(in)
	c.header = slices.ContainsFunc(s.AcceptProxy, func(p netip.Prefix) bool { return p.Contains(peer.Addr()) })
	client := peer.Addr()
	if c.header { // which tells the client later
		client = netip.Addr{}
	}
	// A server that was replaced gets no more connections from when it counts those that it has.
	err := l.conns.Add(c, client, s.MaxConnections, s.MaxPerClient, func() { c.server = l.server() })
	switch {
	case errors.Is(err, sock.ErrFull):
		l.metrics.refused("limit")
		return nil
	case err != nil:
		l.metrics.refused("client_limit")
		return nil
	}
	if c.server.ConnState != nil {
		c.idling.limit = c.server.idle
	}
	l.metrics.opened()
	return c
}

// charge counts a connection whose PROXY header has told the client.
func (l *listener) charge(c *conn, client netip.Addr) error {
	if !l.conns.Count(c, client, l.settings.Load().MaxPerClient) {
		l.metrics.refused("client_limit")
		return sock.ErrClientFull
	}
	if why := c.lease.Move(client); !c.closed.Load() && why != admission.Admitted {
		l.metrics.refused(why.String())
		return errNoRoom
	}
	return nil
}

// pace has the kernel space the packets out, so that one machine with a fast link does not starve the others.
func (l *listener) pace(fd int, bytesPerSecond int64) {
	if err := sock.SetPace(fd, bytesPerSecond); err != nil && l.lines.Allow(netip.Addr{}, "pace") {
		l.log.Warn("failed to pace connection", "error", err)
	}
}

func (l *listener) remove(c *conn) {
	if l.conns.Remove(c) {
		c.lease.Release()
		l.metrics.closed()
	}
}

// conn is a client's connection. It counts bytes, bounds stalls, and keeps sendfile reachable: net/http looks for
// ReadFrom on it.
type conn struct {
	socket   *sock.Socket // nil while the connection is in its loop
	server   *server
	listener *listener
	lease    admission.Lease
	unread   unread
	idling   idling
	// turnedDown are its requests for which there was no room; multiplexed is HTTP/2; switched, another protocol, whose
	// answer's length is not noted: its socket keeps small buffers, and is written to by another goroutine.
	turnedDown  atomic.Int32
	multiplexed atomic.Bool
	switched    atomic.Bool
	evicted     atomic.Bool
	entering    sync.Mutex         // of HTTP/2's streams
	answer      int64              // bytes written of the answer
	buffers     sock.StreamBuffers // of it
	spoke       atomic.Bool        // has sent something to net/http's server
	asked       atomic.Bool        // its first request has reached a handler of net/http
	peer        netip.AddrPort     // as accept told it: the socket itself forgets it with a reset
	stall       stall

	shaping shaping // of the answer
	closed  atomic.Bool
	attempt atomic.Pointer[attempt]    // of the request that net/http sees first
	inLoop  atomic.Pointer[http1.Conn] // nil: it has left the engine, and socket is it
	agreed  atomic.Pointer[agreement]  // nil without TLS

	// A body whose client stalled was not read to its end: net/http would take what still comes of it for the next
	// request. Nothing more is read then.
	inBody, spent atomic.Bool

	header bool // begins with a PROXY header
	once   sync.Once
	told   net.Addr // what the header told
	early  []byte
	broken error

	// forwarded is what an endpoint is told of the client, where it asks for a host: header lines.
	forwarded struct {
		host  string
		lines []byte
	}
}

// RemoteAddr is the client's address. It reads the PROXY header first, where there is to be one; net/http asks in
// the connection's own goroutine.
func (c *conn) RemoteAddr() net.Addr {
	c.readHeader()
	if c.told != nil {
		return c.told
	}
	return net.TCPAddrFromAddrPort(c.peer)
}

// LocalAddr implements net.Conn.
func (c *conn) LocalAddr() net.Addr { return c.socket.LocalAddr() }

// SyscallConn implements syscall.Conn.
func (c *conn) SyscallConn() (syscall.RawConn, error) {
	if c.socket == nil {
		return nil, net.ErrClosed
	}
	return c.socket.SyscallConn()
}

// CloseWrite ends the stream to the client.
func (c *conn) CloseWrite() error { return c.socket.CloseWrite() }

// SetDeadline implements net.Conn.
func (c *conn) SetDeadline(t time.Time) error { return c.socket.SetDeadline(t) }

// SetWriteDeadline implements net.Conn.
func (c *conn) SetWriteDeadline(t time.Time) error { return c.socket.SetWriteDeadline(t) }

func (c *conn) readHeader() {
	if !c.header {
		return
	}
	c.once.Do(func() {
		source, _, early, err := sock.ReadProxyHeader(c.socket)
		c.early, c.broken = early, err
		switch {
		case err != nil:
			c.listener.metrics.refused("proxy_header")
			if c.listener.lines.Allow(c.peer.Addr(), "PROXY header") {
				c.listener.log.Info("PROXY header refused", "peer", c.peer, "error", err)
			}
		case source.IsValid():
			c.told = net.TCPAddrFromAddrPort(source)
			c.broken = c.listener.charge(c, source.Addr())
		default: // the load balancer's own
			c.broken = c.listener.charge(c, c.peer.Addr())
		}
		if c.broken != nil {
			c.resetOnClose()
		}
	})
}

// Read implements net.Conn.
func (c *conn) Read(b []byte) (int, error) {
	c.readHeader()
	if c.broken != nil {
		return 0, &net.OpError{Op: "read", Net: "tcp", Err: c.broken} // net/http answers other errors with a 400
	}
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
	c.closed.Store(true)
	if s := c.inLoop.Load(); s != nil { // the loop may still be charging it
		s.Close()
		return nil
	}
	c.listener.remove(c)
	c.idling.stop()
	c.forget()
	if c.socket == nil {
		return net.ErrClosed
	}
	return c.socket.Close()
}

// resetOnClose has the client learn that its stream is torn.
func (c *conn) resetOnClose() {
	if raw, err := c.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { sock.ResetOnClose(int(fd)) })
	}
}

// opError is an error as net has it: net/http answers a client of which it knows no error of reading.
func opError(op string, err error) error {
	if err == nil || errors.Is(err, io.EOF) {
		return err
	}
	return &net.OpError{Op: op, Net: "tcp", Err: err}
}

// forget lets go of an attempt that was not taken up.
func (c *conn) forget() {
	if a := c.attempt.Swap(nil); a != nil {
		a.give()
	}
}
