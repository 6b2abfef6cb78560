package web

import (
	"errors"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/pkg/proxy/idle"
	"github.com/tinkerbell/stack/pkg/proxy/loop"
	"github.com/tinkerbell/stack/pkg/proxy/tcp"
)

// stock is a loop's kept connections to the endpoints of a direct, which closes them with its own.
type stock struct {
	hub    *hub
	direct *direct
	idle   *idle.Pool[*far]
}

// far is a loop's connection to an endpoint. At most one request is on it.
type far struct {
	idle.Slot[*far] // tells for which requests it is

	stock      *stock
	fd         int
	handle     loop.Handle
	swift      *swift // whose request is on it; nil while it is kept
	used       bool   // has answered a request before
	connecting bool
	last       bool // there may be an end behind what is read
}

// stockOf is the loop's share of a direct.
func (h *hub) stockOf(d *direct) *stock {
	if h.stock != nil && h.stock.direct == d {
		return h.stock
	}
	// The one before is closed by its direct: a front has two at a time only while it changes from one to the other.
	s := &stock{hub: h, direct: d, idle: idle.New[*far](keepLimits(d.shared, len(h.front.hubs)))}
	d.mu.Lock()
	if d.closed {
		s.idle.Close()
	} else {
		d.stocks = append(d.stocks, s)
	}
	d.mu.Unlock()
	h.stock = s
	return s
}

// take takes the kept connection of a key that was used last; nil where there is none. As [direct.take], it looks for
// what the endpoint has said meanwhile: the event that tells of it may be still to come.
func (s *stock) take(key idle.Key) *far {
	for {
		f, ok := s.idle.Take(key, s.hub.loop.Now())
		if !ok {
			return nil
		}
		if _, err := peek(f.fd); errors.Is(err, unix.EAGAIN) {
			return f
		}
		f.close()
	}
}

// put keeps a connection for the next request with its key.
func (s *stock) put(f *far) {
	f.swift, f.used = nil, true
	if surplus, ok := s.idle.Put(f, s.hub.loop.Now()); ok {
		surplus.close()
	}
}

// sweep closes those that nobody used for long, and tells how many are left.
func (s *stock) sweep(now time.Time) (left int) {
	for f, ok := s.idle.Expired(now); ok; f, ok = s.idle.Expired(now) {
		f.close()
	}
	return s.idle.Len()
}

// drop closes those to an endpoint.
func (s *stock) drop(addr netip.AddrPort) {
	for _, f := range s.idle.RemoveAll(addr) {
		f.close()
	}
}

// close closes all, and those that come back.
func (s *stock) close() {
	for _, f := range s.idle.Close() {
		f.close()
	}
}

// lose closes a kept connection that has said something, or ended.
func (s *stock) lose(f *far) {
	s.idle.Remove(f)
	f.close()
}

func (f *far) close() { f.stock.hub.forget(f.fd, f.handle) }

// Ready implements loop.Watcher.
func (f *far) Ready(e loop.Events) {
	switch {
	case f.swift == nil:
		if e.Readable() {
			f.stock.lose(f)
		}
	case !f.connecting:
		f.last = f.last || e.Last()
		f.swift.receive()
	case e.Writable():
		s := f.swift
		waiting, err := tcp.Connect(f.fd, f.Key().Endpoint())
		if waiting {
			return
		}
		f.connecting = false
		f.last = e.Last()
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
func (s *stock) open(key idle.Key) (f *far, err error) {
	addr := key.Endpoint()
	if addr.Addr().Zone() != "" {
		return nil, errNotHere
	}
	fd, err := tcp.Open(addr, true)
	if err != nil {
		return nil, err
	}
	f = &far{Slot: idle.NewSlot[*far](key), stock: s, fd: fd}
	if err = farOptions(fd); err == nil {
		f.connecting, err = tcp.Connect(fd, addr)
	}
	mode := loop.Stream
	if f.connecting {
		mode = loop.Connecting
	}
	if err == nil {
		f.handle, err = s.hub.loop.Watch(fd, mode, f)
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	return f, nil
}

// farOptions are as net.Dialer sets them.
func farOptions(fd int) error {
	for _, o := range [...][3]int{
		{unix.IPPROTO_TCP, unix.TCP_NODELAY, 1},
		{unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1},
		{unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, 15},
		{unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, 15},
	} {
		if err := unix.SetsockoptInt(fd, o[0], o[1], o[2]); err != nil {
			return os.NewSyscallError("setsockopt", err)
		}
	}
	return nil
}
