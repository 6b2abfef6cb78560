package web

import (
	"context"
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
	"time"

	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/pkg/edge/limit"
	"github.com/tinkerbell/stack/pkg/proxy/admission"
	"github.com/tinkerbell/stack/pkg/proxy/tcp"
)

// errClientLimit ends a connection whose client has as many as it may.
var errClientLimit = errors.New("the client has too many connections")

// errRetired ends a server whose successor has the socket.
var errRetired = errors.New("another server has the socket now")

// listener applies the front's limits. One socket, handed from one generation's server to the next.
type listener struct {
	inner    *net.TCPListener
	settings atomic.Pointer[Settings]
	metrics  *routeMetrics
	log      *slog.Logger
	room     *admission.Route

	tls *tls.Config // asks the front for a route's

	holder *held // guarded by the front's mutex

	// express is given connections before net/http sees them; false leaves them to it.
	express func(*conn) bool

	mu      sync.Mutex
	conns   map[*conn]struct{}
	clients map[netip.Addr]int

	reaping atomic.Bool // a timer is set to close what was given up
}

// held is the socket in the hands of one server. Closing it leaves the socket open.
type held struct {
	*listener
	server *server
	gone   atomic.Bool
}

// hand gives the socket to a new holder. The old one's Accept is woken by a deadline in the past, which stays until
// its server has ended: taken off earlier, the runtime could let it sleep on.
func (l *listener) hand(s *server) *held {
	next := &held{listener: l, server: s}
	if old := l.holder; old != nil {
		old.gone.Store(true)
		_ = l.inner.SetDeadline(time.Unix(1, 0))
		<-old.server.ended
		_ = l.inner.SetDeadline(time.Time{})
	}
	l.holder = next
	return next
}

func (h *held) Close() error   { return nil }
func (h *held) Addr() net.Addr { return h.inner.Addr() }

// Accept implements net.Listener.
func (h *held) Accept() (net.Conn, error) {
	for {
		if h.gone.Load() {
			return nil, errRetired
		}
		h.room.Wait(costOf(h.settings.Load()))
		inner, err := h.inner.AcceptTCP()
		if errors.Is(err, os.ErrDeadlineExceeded) {
			continue
		}
		if err != nil {
			// net/http tries again by itself where that makes sense: it knows temporary errors.
			return nil, err
		}
		c := h.admit(inner, h.server)
		switch secure := h.settings.Load().TLS; {
		case c == nil:
		case secure != nil:
			return tls.Server(c, h.tls), nil // the handshake is in the connection's own goroutine
		case !c.header && h.express(c):
		default:
			return c, nil
		}
	}
}

// admit applies the limits; nil when the connection is not taken.
func (l *listener) admit(inner *net.TCPConn, server *server) *conn {
	s := l.settings.Load()
	c := &conn{TCPConn: inner, server: server, listener: l, remote: inner.RemoteAddr(), stall: stall{most: s.Stall}}
	c.peer = addrPort(c.remote)
	if server.ConnState != nil {
		c.idling.limit = server.idle
	}
	c.header = slices.ContainsFunc(s.AcceptProxy, func(p netip.Prefix) bool { return p.Contains(c.peer.Addr()) })
	l.mu.Lock()
	reason := ""
	switch {
	case s.MaxConnections > 0 && len(l.conns) >= s.MaxConnections:
		reason = "limit"
	case !c.header && !l.count(c, c.peer.Addr(), s.MaxPerClient): // else when the header has told the client
		reason = "client_limit"
	default:
		l.conns[c] = struct{}{}
	}
	l.mu.Unlock()
	if reason != "" {
		l.metrics.refused(reason)
		_ = inner.SetLinger(0)
		_ = inner.Close()
		return nil
	}
	l.metrics.opened()
	if why := l.room.Admit(&c.lease, c, c.peer.Addr(), costOf(s)); why != admission.Admitted {
		l.metrics.refused(why.String())
		_ = inner.SetLinger(0)
		_ = c.Close()
		return nil
	}
	if s.Pace > 0 {
		l.pace(inner, s.Pace)
	}
	return c
}

// count adds a connection to its client's, unless there are that many already. The caller holds mu.
func (l *listener) count(c *conn, client netip.Addr, most int) bool {
	client = limit.Key(client)
	if most > 0 && l.clients[client] >= most {
		return false
	}
	if l.clients == nil {
		l.clients = map[netip.Addr]int{}
	}
	l.clients[client]++
	c.counted = client
	return true
}

// charge counts a connection whose PROXY header has told the client.
func (l *listener) charge(c *conn, client netip.Addr) error {
	l.mu.Lock()
	_, open := l.conns[c]
	full := open && !l.count(c, client, l.settings.Load().MaxPerClient)
	l.mu.Unlock()
	if full {
		l.metrics.refused("client_limit")
		return errClientLimit
	}
	if why := c.lease.Move(client); open && why != admission.Admitted {
		l.metrics.refused(why.String())
		return errNoRoom
	}
	return nil
}

// pace has the kernel space the packets out, so that one machine with a fast link does not starve the others.
func (l *listener) pace(inner *net.TCPConn, bytesPerSecond int64) {
	raw, err := inner.SyscallConn()
	if err == nil {
		err = errors.Join(err, raw.Control(func(fd uintptr) {
			err = unix.SetsockoptUint64(int(fd), unix.SOL_SOCKET, unix.SO_MAX_PACING_RATE, uint64(bytesPerSecond))
		}))
	}
	if err != nil {
		l.log.Warn("failed to pace connection", "error", err)
	}
}

func (l *listener) remove(c *conn) {
	l.mu.Lock()
	_, open := l.conns[c]
	delete(l.conns, c)
	if open && c.counted.IsValid() { // no PROXY header may have told whose it is
		if l.clients[c.counted]--; l.clients[c.counted] <= 0 {
			delete(l.clients, c.counted)
		}
	}
	l.mu.Unlock()
	if open {
		c.lease.Release()
		l.metrics.closed()
	}
}

// conn is a client's connection. It counts bytes, bounds stalls, and keeps sendfile reachable: net/http looks for
// ReadFrom on it.
type conn struct {
	*net.TCPConn
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
	entering    sync.Mutex      // of HTTP/2's streams
	answer      int64           // bytes written of the answer
	buffers     tcp.Buffers     // of it
	spare       admission.Spare // for them
	spoke       atomic.Bool     // has sent something
	asked       atomic.Bool     // its first request has reached a handler of net/http
	remote      net.Addr        // as accept told it: the socket itself forgets it with a reset
	peer        netip.AddrPort
	counted     netip.Addr // whose connection it is, to the limit; guarded by the listener's mutex
	stall       stall

	shaping  shaping // of the answer
	phase    atomic.Uint32
	closed   atomic.Bool
	dialing  atomic.Pointer[context.CancelFunc] // ends a plain request's attempt to connect
	upstream atomic.Pointer[upstream]           // what a plain request is being asked of; closed with the connection
	begun    atomic.Pointer[attempt]            // of the request that net/http sees first
	inLoop   atomic.Pointer[swift]              // nil: TCPConn is it
	worth    int                                // requests in a row, to go into a loop
	agreed   atomic.Pointer[agreement]          // nil without TLS

	// A body whose client stalled was not read to its end: net/http would take what still comes of it for the next
	// request. Nothing more is read then.
	inBody, spent atomic.Bool

	header bool // begins with a PROXY header
	once   sync.Once
	told   net.Addr // what the header told
	early  []byte
	broken error
}

// Phases of a connection.
const (
	phaseBusy    = iota // or not yet spoken, or net/http's
	phaseWaiting        // for the next plain request
	phaseClosed         // in that wait
)

// RemoteAddr is the client's address. It reads the PROXY header first, where there is to be one; net/http asks in
// the connection's own goroutine.
func (c *conn) RemoteAddr() net.Addr {
	c.readHeader()
	if c.told != nil {
		return c.told
	}
	return c.remote
}

func (c *conn) readHeader() {
	if !c.header {
		return
	}
	c.once.Do(func() {
		header, early, err := tcp.ReadProxyHeader(c.TCPConn)
		c.early, c.broken = early, err
		switch {
		case err != nil:
			c.listener.metrics.refused("proxy_header")
			c.listener.log.Info("PROXY header refused", "peer", c.peer, "error", err)
		case !header.Command.IsLocal() && addrPort(header.SourceAddr).IsValid():
			c.told = header.SourceAddr
			c.broken = c.listener.charge(c, addrPort(header.SourceAddr).Addr())
		default: // the load balancer's own
			c.broken = c.listener.charge(c, c.peer.Addr())
		}
		if c.broken != nil {
			_ = c.TCPConn.SetLinger(0)
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
	n, err := c.TCPConn.Read(b)
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
		n, err := c.TCPConn.Write(b[total:])
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
	c.listener.remove(c)
	c.closed.Store(true)
	c.idling.stop()
	if cancel := c.dialing.Load(); cancel != nil {
		(*cancel)()
	}
	if u := c.upstream.Swap(nil); u != nil {
		_ = u.Close()
	}
	c.forget()
	if s := c.inLoop.Load(); s != nil {
		s.close()
		return nil
	}
	return c.TCPConn.Close()
}

// forget lets go of an attempt that was not taken up.
func (c *conn) forget() {
	if a := c.begun.Swap(nil); a != nil {
		a.give()
	}
}

func addrPort(addr net.Addr) netip.AddrPort {
	if t, ok := addr.(*net.TCPAddr); ok {
		a := t.AddrPort()
		return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
	}
	return netip.AddrPort{}
}
