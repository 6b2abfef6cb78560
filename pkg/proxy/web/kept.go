package web

import (
	"bufio"
	"context"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"
)

const (
	// kept connections per endpoint, and for how long.
	directKept = 256
	directIdle = 60 * time.Second
)

// direct is the pool of connections to endpoints.
type direct struct {
	dialer   *net.Dialer
	response time.Duration

	mu       sync.Mutex
	idle     map[netip.AddrPort][]*upstream
	sweeping *time.Timer // set while connections are kept
	closed   bool
}

func newDirect(s *Settings) *direct {
	dialer := &net.Dialer{Timeout: atLeast(s.Dial)}
	dialer.SetMultipathTCP(false)
	return &direct{dialer: dialer, response: s.Response, idle: map[netip.AddrPort][]*upstream{}}
}

// upstream is a connection to an endpoint. At most one request is on it.
type upstream struct {
	net.Conn
	reader *bufio.Reader
	head   []byte // of the request, kept for its space
	addr   netip.AddrPort
	since  time.Time // idle
	until  time.Time // the read deadline
	used   bool      // has answered a request before
}

// waitUntil sets the read deadline; zero is none.
func (u *upstream) waitUntil(deadline time.Time) error {
	u.until = deadline
	return u.SetReadDeadline(deadline)
}

// get takes a kept connection, the one used last, or opens one.
func (d *direct) get(ctx context.Context, addr netip.AddrPort, fresh bool) (*upstream, error) {
	if !fresh {
		d.mu.Lock()
		kept := d.idle[addr]
		if n := len(kept); n > 0 {
			u := kept[n-1]
			kept[n-1] = nil
			d.idle[addr] = kept[:n-1]
			d.mu.Unlock()
			if time.Since(u.since) < directIdle {
				return u, nil
			}
			_ = u.Close()
			d.drop(addr) // those below it are older still
		} else {
			d.mu.Unlock()
		}
	}
	conn, err := d.dialer.DialContext(ctx, "tcp", addr.String())
	if err != nil {
		return nil, err
	}
	return &upstream{Conn: conn, addr: addr, reader: bufio.NewReaderSize(conn, 4<<10)}, nil
}

// put keeps a connection for the next request.
func (d *direct) put(u *upstream) {
	u.since, u.used = time.Now(), true
	d.mu.Lock()
	if !d.closed && len(d.idle[u.addr]) < directKept {
		d.idle[u.addr] = append(d.idle[u.addr], u)
		if d.sweeping == nil {
			d.sweeping = time.AfterFunc(directIdle, d.sweep)
		}
		u = nil
	}
	d.mu.Unlock()
	if u != nil {
		_ = u.Close()
	}
}

// sweep closes the connections that nobody used for long: the endpoint may have closed its side.
func (d *direct) sweep() {
	var old []*upstream
	d.mu.Lock()
	for addr, kept := range d.idle {
		n := 0
		for n < len(kept) && time.Since(kept[n].since) >= directIdle { // the longest idle come first
			n++
		}
		old = append(old, kept[:n]...)
		if d.idle[addr] = slices.Clone(kept[n:]); n == len(kept) {
			delete(d.idle, addr)
		}
	}
	d.sweeping = nil
	if len(d.idle) > 0 && !d.closed {
		d.sweeping = time.AfterFunc(directIdle/4, d.sweep)
	}
	d.mu.Unlock()
	for _, u := range old {
		_ = u.Close()
	}
}

// drop closes the kept connections to an endpoint.
func (d *direct) drop(addr netip.AddrPort) {
	d.mu.Lock()
	kept := d.idle[addr]
	delete(d.idle, addr)
	d.mu.Unlock()
	for _, u := range kept {
		_ = u.Close()
	}
}

// close closes the kept connections, and those that come back.
func (d *direct) close() {
	d.mu.Lock()
	all := d.idle
	d.idle, d.closed = map[netip.AddrPort][]*upstream{}, true
	if d.sweeping != nil {
		d.sweeping.Stop()
	}
	d.mu.Unlock()
	for _, kept := range all {
		for _, u := range kept {
			_ = u.Close()
		}
	}
}
