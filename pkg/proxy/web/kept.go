package web

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// kept connections per endpoint, and for how long.
	directKept = 256
	directIdle = 60 * time.Second
)

// direct is the pool of connections to endpoints.
type direct struct {
	dial     func(ctx context.Context, network, addr string) (net.Conn, error)
	limit    time.Duration // of dial; 0 is none
	response time.Duration

	mu       sync.Mutex
	idle     map[netip.AddrPort][]*upstream
	stocks   []*stock    // of the loops
	sweeping *time.Timer // set while connections are kept
	closed   bool
}

func newDirect(s *Settings) *direct {
	return &direct{
		dial: dial(s), limit: atLeast(s.Dial), response: s.Response, idle: map[netip.AddrPort][]*upstream{},
	}
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
	look   func() (n int, err error)
	early  []byte // what was read before there was a reader
	broken error  // what comes behind that; nil is what the connection says

	bounded bool // what is read is a head
	room    int  // how many bytes more of it are read
}

// answerHead bounds an answer's head, interim answers included, in bytes.
const answerHead = 256 << 10

var errLongHead = errors.New("the head of the endpoint's answer is too long")

// Read implements io.Reader.
func (u *upstream) Read(b []byte) (int, error) {
	if len(u.early) > 0 {
		n := copy(b, u.early)
		u.early = u.early[n:]
		return n, nil
	}
	if u.broken != nil {
		return 0, u.broken
	}
	if !u.bounded {
		return u.Conn.Read(b)
	}
	if u.room <= 0 {
		return 0, errLongHead
	}
	n, err := u.Conn.Read(b[:min(len(b), u.room)])
	u.room -= n
	return n, err
}

// waitUntil sets the read deadline; zero is none.
func (u *upstream) waitUntil(deadline time.Time) error {
	u.until = deadline
	return u.SetReadDeadline(deadline)
}

// get takes a kept connection, or opens one.
func (d *direct) get(ctx context.Context, addr netip.AddrPort, fresh bool) (*upstream, error) {
	if !fresh {
		if u := d.take(addr); u != nil {
			return u, nil
		}
	}
	return d.open(ctx, addr)
}

// take takes the kept connection used last; nil where there is none. One on which the endpoint has spoken, or ended,
// since its last answer is not taken: what lies there (a 408 for the idle, a surplus that came late) is nobody's
// answer.
func (d *direct) take(addr netip.AddrPort) *upstream {
	for {
		u := d.pop(addr)
		switch {
		case u == nil:
			return nil
		case time.Since(u.since) >= directIdle:
			d.drop(addr) // those below it are older still
		case u.quiet():
			return u
		}
		_ = u.Close()
	}
}

// open opens a connection.
func (d *direct) open(ctx context.Context, addr netip.AddrPort) (*upstream, error) {
	conn, err := d.dial(ctx, "tcp", addr.String())
	if err != nil {
		return nil, err
	}
	return newUpstream(conn, addr, nil, nil), nil
}

const readerSize = 4 << 10

// newUpstream goes on with a connection from which something may have been read, or failed to be. What was read is in
// the reader's buffer then, where all look for it.
func newUpstream(conn net.Conn, addr netip.AddrPort, early []byte, broken error) *upstream {
	u := &upstream{Conn: conn, addr: addr, early: early, broken: broken}
	u.reader = bufio.NewReaderSize(u, max(readerSize, len(early)))
	if len(early) > 0 {
		_, _ = u.reader.Peek(1)
	}
	switch conn := conn.(type) {
	case *tls.Conn:
		u.look = lookInto(conn)
	case syscall.Conn:
		if raw, err := conn.SyscallConn(); err == nil {
			u.look = lookAt(raw)
		}
	}
	return u
}

// pop takes the connection used last off those that are kept for an endpoint; nil where there is none.
func (d *direct) pop(addr netip.AddrPort) *upstream {
	d.mu.Lock()
	defer d.mu.Unlock()
	kept := d.idle[addr]
	n := len(kept)
	if n == 0 {
		return nil
	}
	u := kept[n-1]
	kept[n-1] = nil
	d.idle[addr] = kept[:n-1]
	return u
}

// quiet is whether an idle connection is open and has nothing to be read.
func (u *upstream) quiet() bool {
	if u.look == nil {
		return true
	}
	_, err := u.look()
	return errors.Is(err, unix.EAGAIN)
}

// lookAt returns a function that looks whether a connection has something to be read (n > 0), has ended (n = 0), or
// neither (EAGAIN). It takes nothing away, and allocates nothing.
func lookAt(raw syscall.RawConn) func() (n int, err error) {
	var n int
	var err error
	look := func(fd uintptr) { n, err = peek(int(fd)) }
	return func() (int, error) {
		if failure := raw.Control(look); failure != nil {
			return 0, failure
		}
		return n, err
	}
}

// lookInto is lookAt for TLS, where what is to be read may have been read of the connection below it, too. What it
// finds is taken away: nobody may use the connection then. The read deadline is in the past afterwards.
func lookInto(conn *tls.Conn) func() (n int, err error) {
	below := func() (int, error) { return 0, errors.ErrUnsupported }
	if wire, ok := conn.NetConn().(syscall.Conn); ok {
		if raw, err := wire.SyscallConn(); err == nil {
			below = lookAt(raw)
		}
	}
	return func() (int, error) {
		if n, err := below(); !errors.Is(err, unix.EAGAIN) {
			return n, err
		}
		if err := conn.SetReadDeadline(time.Unix(1, 0)); err != nil {
			return 0, err
		}
		var one [1]byte
		n, err := conn.Read(one[:])
		if n == 0 && errors.Is(err, os.ErrDeadlineExceeded) {
			return 0, unix.EAGAIN
		}
		return n, err
	}
}

// peek looks at a socket that does not block, as lookAt says. unix.Recvfrom would allocate the sender's address.
func peek(fd int) (n int, err error) {
	var one [1]byte
	for {
		got, _, failure := unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(fd), uintptr(unsafe.Pointer(&one)), 1,
			unix.MSG_PEEK|unix.MSG_DONTWAIT, 0, 0)
		switch failure {
		case 0:
			return int(got), nil
		case unix.EINTR:
		default:
			return 0, failure
		}
	}
}

// put keeps a connection for the next request.
func (d *direct) put(u *upstream) {
	u.since, u.used = time.Now(), true
	if u.reader != nil && u.reader.Size() > readerSize {
		u.reader = bufio.NewReaderSize(u, readerSize)
	}
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
	kept, stocks := d.idle[addr], d.stocks
	delete(d.idle, addr)
	d.mu.Unlock()
	for _, u := range kept {
		_ = u.Close()
	}
	for _, s := range stocks {
		s.hub.soon(func() { s.drop(addr) })
	}
}

// close closes the kept connections, and those that come back.
func (d *direct) close() {
	d.mu.Lock()
	all, stocks := d.idle, d.stocks
	d.idle, d.stocks, d.closed = map[netip.AddrPort][]*upstream{}, nil, true
	if d.sweeping != nil {
		d.sweeping.Stop()
	}
	d.mu.Unlock()
	for _, kept := range all {
		for _, u := range kept {
			_ = u.Close()
		}
	}
	for _, s := range stocks {
		closed := make(chan struct{})
		s.hub.soon(func() {
			s.close()
			close(closed)
		})
		<-closed // or its descriptors could outlive the front
	}
}
