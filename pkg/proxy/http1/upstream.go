package http1

import (
	"errors"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/pkg/proxy/loop"
	"github.com/tinkerbell/stack/pkg/proxy/sock"
)

// Upstreams are the idle connections to the endpoints of a route, in all engines that serve it. Each is for the
// requests with one [Key].
type Upstreams struct {
	limits IdleLimits // of an engine's

	mu     sync.Mutex
	pools  []*upstreamPool
	closed bool
}

// NewUpstreams makes Upstreams of which each engine keeps as many as the limits say.
func NewUpstreams(limits IdleLimits) *Upstreams { return &Upstreams{limits: limits} }

// Drop closes the idle connections to an endpoint. It does not wait.
func (u *Upstreams) Drop(endpoint netip.AddrPort) {
	u.mu.Lock()
	pools := u.pools
	u.mu.Unlock()
	for _, p := range pools {
		p.engine.loop.Do(func() { // where the loop has ended, Close will close them
			p.drop(endpoint)
		})
	}
}

// Close closes all idle connections and waits for that, since no descriptor may outlive the owner. Connections that
// become idle later are closed at once. It must not be called in a loop's thread.
func (u *Upstreams) Close() {
	u.mu.Lock()
	pools := u.pools
	u.pools, u.closed = nil, true
	u.mu.Unlock()
	for _, p := range pools {
		closed := make(chan struct{})
		p.engine.Soon(func() {
			for _, c := range p.idle.close() {
				c.close()
			}
			close(closed)
		})
		<-closed
	}
}

// upstreamPool is an engine's part of Upstreams.
type upstreamPool struct {
	engine *Engine
	of     *Upstreams
	idle   idleConns
	holds  map[netip.AddrPort]struct{} // endpoints that hold idle connections open
}

// holdsFrom is how long an idle connection has stayed open when its endpoint is known to hold them open. There are
// servers that close each connection behind its answer without having said so, a little later.
const holdsFrom = time.Second

// holdsIdle reports whether a POST may go on an idle connection to the endpoint of a key. Such a POST is not sent again
// if the endpoint closes the connection at that moment (but see Conn.unreceived). So the endpoint must have held one
// open for holdsFrom, and have closed none since.
func (p *upstreamPool) holdsIdle(key Key) bool {
	if p.idle.age(key, p.engine.loop.Now()) >= holdsFrom {
		p.holds[key.endpoint] = struct{}{}
	}
	_, yes := p.holds[key.endpoint]
	return yes
}

// poolOf returns the engine's pool of u. A reload makes another Upstreams, and closes the former one with
// its pools: only meanwhile are two in use, since a request that began before the reload may be sent again.
func (e *Engine) poolOf(u *Upstreams) *upstreamPool {
	if e.pool != nil && e.pool.of == u {
		return e.pool
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	i := slices.IndexFunc(u.pools, func(p *upstreamPool) bool { return p.engine == e })
	if i < 0 {
		p := &upstreamPool{engine: e, of: u, idle: newIdleConns(u.limits), holds: map[netip.AddrPort]struct{}{}}
		if u.closed {
			// For a request that began before the reload. Nothing will be kept in it: it must not take the place of the pool
			// that is in use.
			p.idle.close()
			return p
		}
		i, u.pools = len(u.pools), append(u.pools, p)
	}
	e.pool = u.pools[i]
	return e.pool
}

// take returns the idle connection of a key that was used last; nil if there is none. It looks into the socket, and
// closes those with unread bytes or an end, which the loop may not have reported yet.
func (p *upstreamPool) take(key Key) *upstream {
	for {
		u := p.idle.take(key, p.engine.loop.Now())
		if u == nil {
			return nil
		}
		if _, err := sock.Peek(u.fd); errors.Is(err, unix.EAGAIN) {
			return u
		}
		u.closedIdle()
		u.close()
	}
}

// drop closes the idle connections to an endpoint.
func (p *upstreamPool) drop(endpoint netip.AddrPort) {
	for _, c := range p.idle.removeAll(endpoint) {
		c.close()
	}
}

// wants reports whether to keep the connection of a request. A POST's connection to an endpoint that may close idle
// ones is kept only in a spare place, since only safe requests may go on it.
func (p *upstreamPool) wants(u *upstream, x *Exchange) bool {
	return x.Request.safe() || p.holdsIdle(u.key) || p.idle.hasRoom(u.key)
}

// put keeps a connection for the next request with its key.
func (p *upstreamPool) put(u *upstream) {
	u.conn, u.used = nil, true
	if surplus := p.idle.put(u, p.engine.loop.Now()); surplus != nil {
		surplus.close()
	}
}

// sweep closes those that nobody used for long, and tells how many are left.
func (p *upstreamPool) sweep(now time.Time) (left int) {
	for u := p.idle.expired(now); u != nil; u = p.idle.expired(now) {
		u.closedIdle() // whether the endpoint holds idle connections open is not known from now on
		u.close()
	}
	return p.idle.all.Len()
}

// upstream is a connection to an endpoint. At most one request is on it.
type upstream struct {
	idleSlot // tells for which requests it is
	socket

	pool       *upstreamPool
	conn       *Conn // whose request is on it; nil while it is idle
	used       bool  // has answered a request before
	connecting bool
}

// open begins to connect, for a key.
func (p *upstreamPool) open(key Key) (u *upstream, err error) {
	addr := key.endpoint
	fd, err := sock.OpenSmall(addr)
	if err != nil {
		return nil, err
	}
	u = &upstream{idleSlot: idleSlot{key: key}, pool: p, socket: socket{fd: fd}}
	if err = sock.SetUpstream(fd); err == nil {
		u.connecting, err = sock.Connect(fd, addr)
	}
	if sock.NoLocalPort(err) && p.idle.all.Len() > 0 { // idle connections hold some
		p.drop(addr)
		u.connecting, err = sock.Connect(fd, addr)
	}
	switch {
	case err != nil:
	case u.connecting:
		err = u.watchWrites(p.engine.loop, u)
	default:
		err = u.watch(p.engine.loop, u)
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	return u, nil
}

// closedIdle notes that an idle connection to the endpoint did not last.
func (u *upstream) closedIdle() { delete(u.pool.holds, u.key.endpoint) }

// close resets an idle connection, on which nothing is under way: closed otherwise, it would hold its local port for a
// minute more (TIME-WAIT, RFC 9293 section 3.6.1).
func (u *upstream) close() {
	sock.ResetOnClose(u.fd)
	u.socket.close(u.pool.engine.loop)
}

// Ready implements loop.Watcher.
func (u *upstream) Ready(e loop.Events) {
	u.note(e)
	switch {
	case u.conn == nil: // the endpoint has sent something unasked, or closed an idle connection
		if e.Readable() {
			u.pool.idle.remove(u)
			u.closedIdle()
			u.close()
		}
	case u.connecting && !e.Writable():
	default:
		u.conn.on(endpointReady)
	}
}
