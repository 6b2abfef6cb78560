package web

import (
	"errors"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/pkg/proxy/idle"
	"github.com/tinkerbell/stack/pkg/proxy/loop"
	"github.com/tinkerbell/stack/pkg/proxy/sock"
)

// loopPool keeps a loop's idle connections to the endpoints of an upstream pool, which closes them with its own.
type loopPool struct {
	in        *frontLoop
	upstreams *upstreamPool
	idle      *idle.Pool[*loopUpstream]
}

// loopUpstream is a loop's connection to an endpoint. At most one request is on it.
type loopUpstream struct {
	idle.Slot[*loopUpstream] // tells for which requests it is

	pool       *loopPool
	fd         int
	handle     loop.Handle
	conn       *loopConn // whose request is on it; nil while it is idle
	used       bool      // has answered a request before
	connecting bool
	last       bool // there may be an end behind what is read
}

// poolOf is the loop's share of an upstream pool.
func (in *frontLoop) poolOf(d *upstreamPool) *loopPool {
	if in.pool != nil && in.pool.upstreams == d {
		return in.pool
	}
	// The one before is closed by its upstream pool: a front has two at a time only while it changes from one to the
	// other.
	s := &loopPool{in: in, upstreams: d, idle: idle.New[*loopUpstream](idleLimits(d.shared, len(in.front.loops)))}
	d.mu.Lock()
	if d.closed {
		s.idle.Close()
	} else {
		d.loopPools = append(d.loopPools, s)
	}
	d.mu.Unlock()
	in.pool = s
	return s
}

// take takes the kept connection of a key that was used last; nil where there is none. As [upstreamPool.take], it looks
// for what the endpoint has said meanwhile: the event that tells of it may be still to come.
func (s *loopPool) take(key idle.Key) *loopUpstream {
	for {
		u, ok := s.idle.Take(key, s.in.loop.Now())
		if !ok {
			return nil
		}
		if _, err := sock.Peek(u.fd); errors.Is(err, unix.EAGAIN) {
			return u
		}
		u.close()
	}
}

// put keeps a connection for the next request with its key.
func (s *loopPool) put(u *loopUpstream) {
	u.conn, u.used = nil, true
	if surplus, ok := s.idle.Put(u, s.in.loop.Now()); ok {
		surplus.close()
	}
}

// sweep closes those that nobody used for long, and tells how many are left.
func (s *loopPool) sweep(now time.Time) (left int) {
	for u, ok := s.idle.Expired(now); ok; u, ok = s.idle.Expired(now) {
		u.close()
	}
	return s.idle.Len()
}

// drop closes those to an endpoint.
func (s *loopPool) drop(addr netip.AddrPort) {
	for _, u := range s.idle.RemoveAll(addr) {
		u.close()
	}
}

// close closes all, and those that come back.
func (s *loopPool) close() {
	for _, u := range s.idle.Close() {
		u.close()
	}
}

// lose closes a kept connection that has said something, or ended.
func (s *loopPool) lose(u *loopUpstream) {
	s.idle.Remove(u)
	u.close()
}

func (u *loopUpstream) close() { u.pool.in.close(u.fd, u.handle) }

// Ready implements loop.Watcher.
func (u *loopUpstream) Ready(e loop.Events) {
	switch {
	case u.conn == nil:
		if e.Readable() {
			u.pool.lose(u)
		}
	case !u.connecting:
		u.last = u.last || e.Last()
		u.conn.receive()
	case e.Writable():
		s := u.conn
		waiting, err := sock.Connect(u.fd, u.Key().Endpoint())
		if waiting {
			return
		}
		u.connecting = false
		u.last = e.Last()
		if err != nil {
			s.redial()
			return
		}
		// One that speaks first is heard only now: there is no other event.
		if s.send() && e.Readable() {
			s.receive()
		}
	}
}

var errNotHere = errors.New("not by a loop")

// open begins to connect, for a key.
func (s *loopPool) open(key idle.Key) (u *loopUpstream, err error) {
	addr := key.Endpoint()
	if addr.Addr().Zone() != "" {
		return nil, errNotHere
	}
	fd, err := sock.Open(addr, true)
	if err != nil {
		return nil, err
	}
	u = &loopUpstream{Slot: idle.NewSlot[*loopUpstream](key), pool: s, fd: fd}
	if err = sock.SetUpstream(fd); err == nil {
		u.connecting, err = sock.Connect(fd, addr)
	}
	mode := loop.Stream
	if u.connecting {
		mode = loop.Connecting
	}
	if err == nil {
		u.handle, err = s.in.loop.Watch(fd, mode, u)
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	return u, nil
}
