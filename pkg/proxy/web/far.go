package web

import (
	"errors"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/pkg/proxy/loop"
	"github.com/tinkerbell/stack/pkg/proxy/tcp"
)

// stock is a loop's kept connections to the endpoints of a direct, which closes them with its own.
type stock struct {
	hub    *hub
	direct *direct
	idle   map[netip.AddrPort][]*far // used last comes last
	closed bool
}

// far is a loop's connection to an endpoint. At most one request is on it.
type far struct {
	stock      *stock
	addr       netip.AddrPort
	fd         int
	handle     loop.Handle
	swift      *swift // whose request is on it; nil while it is kept
	since      time.Time
	used       bool // has answered a request before
	connecting bool
	last       bool // there may be an end behind what is read
}

// stockOf is the loop's share of a direct.
func (h *hub) stockOf(d *direct) *stock {
	if h.stock != nil && h.stock.direct == d {
		return h.stock
	}
	// The one before is closed by its direct: a front has two at a time only while it changes from one to the other.
	s := &stock{hub: h, direct: d, idle: map[netip.AddrPort][]*far{}}
	d.mu.Lock()
	if s.closed = d.closed; !s.closed {
		d.stocks = append(d.stocks, s)
	}
	d.mu.Unlock()
	h.stock = s
	return s
}

// take takes the kept connection used last; nil where there is none. As [direct.take], it looks for what the endpoint
// has said meanwhile: the event that tells of it may be still to come.
func (s *stock) take(addr netip.AddrPort) *far {
	for {
		kept := s.idle[addr]
		if len(kept) == 0 {
			return nil
		}
		f := kept[len(kept)-1]
		if s.hub.loop.Now().Sub(f.since) >= directIdle {
			s.drop(addr) // those below it are older still
			return nil
		}
		kept[len(kept)-1] = nil
		s.idle[addr] = kept[:len(kept)-1]
		if _, err := peek(f.fd); errors.Is(err, unix.EAGAIN) {
			return f
		}
		f.close()
	}
}

// put keeps a connection for the next request.
func (s *stock) put(f *far) {
	f.swift, f.used, f.since = nil, true, s.hub.loop.Now()
	if s.closed || len(s.idle[f.addr]) >= s.hub.share {
		f.close()
		return
	}
	s.idle[f.addr] = append(s.idle[f.addr], f)
}

// sweep closes those that nobody used for long, and tells how many are left.
func (s *stock) sweep(now time.Time) (left int) {
	for addr, kept := range s.idle {
		n := 0
		for n < len(kept) && now.Sub(kept[n].since) >= directIdle {
			kept[n].close()
			n++
		}
		rest := copy(kept, kept[n:])
		clear(kept[rest:])
		if s.idle[addr] = kept[:rest]; rest == 0 {
			delete(s.idle, addr)
		}
		left += rest
	}
	return left
}

// drop closes those to an endpoint.
func (s *stock) drop(addr netip.AddrPort) {
	for _, f := range s.idle[addr] {
		f.close()
	}
	delete(s.idle, addr)
}

// close closes all, and those that come back.
func (s *stock) close() {
	s.closed = true
	for addr := range s.idle {
		s.drop(addr)
	}
}

// lose closes a kept connection that has said something, or ended.
func (s *stock) lose(f *far) {
	kept := s.idle[f.addr]
	for i, each := range kept {
		if each == f {
			n := i + copy(kept[i:], kept[i+1:])
			kept[n] = nil
			s.idle[f.addr] = kept[:n]
			break
		}
	}
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
		waiting, err := tcp.Connect(f.fd, f.addr)
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

// open begins to connect.
func (s *stock) open(addr netip.AddrPort) (f *far, err error) {
	if addr.Addr().Zone() != "" {
		return nil, errNotHere
	}
	fd, err := tcp.Open(addr)
	if err != nil {
		return nil, err
	}
	f = &far{stock: s, addr: addr, fd: fd}
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
