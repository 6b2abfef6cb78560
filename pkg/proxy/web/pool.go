package web

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/pkg/proxy/http1"
	"github.com/tinkerbell/stack/pkg/proxy/idle"
	"github.com/tinkerbell/stack/pkg/proxy/sock"
)

const (
	// upstreamsKept is how many idle connections a route keeps to its endpoints: so many for the goroutines, and as many
	// for the loops.
	upstreamsKept = 256
	// upstreamIdle is for how long.
	upstreamIdle = 60 * time.Second
)

// idleLimits are those of one of several pools that share upstreamsKept. One client may have half of it.
func idleLimits(shared bool, pools int) idle.Limits {
	limits := idle.Limits{Total: max(upstreamsKept/pools, 1), Age: upstreamIdle}
	limits.PerKey = limits.Total
	if !shared {
		limits.PerKey = max(limits.Total/2, 1)
	}
	return limits
}

// upstreamPool is the pool of connections to endpoints.
type upstreamPool struct {
	dial     func(ctx context.Context, network, addr string) (net.Conn, error)
	limit    time.Duration // of dial; 0 is none
	response time.Duration
	shared   bool             // connections are for the requests of all clients
	loops    *http1.Upstreams // the engine's idle connections

	mu       sync.Mutex
	idle     *idle.Pool[*upstreamConn]
	sweeping *time.Timer // set while connections are kept
}

func newUpstreamPool(s *Settings, loops int) *upstreamPool {
	return &upstreamPool{
		dial: dial(s, nil), limit: atLeast(s.Dial), response: s.Response, shared: s.SharedConnections,
		idle:  idle.New[*upstreamConn](idleLimits(s.SharedConnections, 1)),
		loops: http1.NewUpstreams(idleLimits(s.SharedConnections, loops)),
	}
}

// key is for the requests of a client to an endpoint. This is the only place where a client's address may be left out.
func (d *upstreamPool) key(endpoint netip.AddrPort, client netip.Addr) idle.Key {
	if d.shared {
		return idle.Shared(endpoint)
	}
	return idle.PerClient(endpoint, client)
}

// upstreamConn is a connection to an endpoint. At most one request is on it.
type upstreamConn struct {
	net.Conn
	idle.Slot[*upstreamConn] // tells for which requests it is

	reader   *bufio.Reader
	head     []byte    // of the request, kept for its space
	until    time.Time // the read deadline
	used     bool      // has answered a request before
	look     func() (n int, err error)
	received sock.Buffers // the bound of what is received
	early    []byte       // what was read before there was a reader
	broken   error        // what comes behind that; nil is what the connection says

	bounded bool // what is read is a head
	room    int  // how many bytes more of it are read
}

// answerHead bounds an answer's head, interim answers included, in bytes.
const answerHead = 256 << 10

var errLongHead = errors.New("the head of the endpoint's answer is too long")

// Read implements io.Reader.
func (u *upstreamConn) Read(b []byte) (int, error) {
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
func (u *upstreamConn) waitUntil(deadline time.Time) error {
	u.until = deadline
	return u.SetReadDeadline(deadline)
}

// get takes a kept connection for a key, or opens one.
func (d *upstreamPool) get(ctx context.Context, key idle.Key, fresh bool) (*upstreamConn, error) {
	if !fresh {
		if u := d.take(key); u != nil {
			return u, nil
		}
	}
	return d.open(ctx, key)
}

// take takes the kept connection of a key that was used last; nil where there is none. One on which the endpoint has
// spoken, or ended, since its last answer is not taken: what lies there (a 408 for the idle, a surplus that came late)
// is nobody's answer.
func (d *upstreamPool) take(key idle.Key) *upstreamConn {
	for now := time.Now(); ; {
		d.mu.Lock()
		u, ok := d.idle.Take(key, now)
		d.mu.Unlock()
		if !ok {
			return nil
		}
		if u.quiet() {
			return u
		}
		_ = u.Close()
	}
}

// open opens a connection for a key.
func (d *upstreamPool) open(ctx context.Context, key idle.Key) (*upstreamConn, error) {
	conn, err := d.dial(ctx, "tcp", key.Endpoint().String())
	if err != nil {
		return nil, err
	}
	return newUpstreamConn(conn, key, nil, nil), nil
}

const readerSize = 4 << 10

// newUpstreamConn goes on with a connection from which something may have been read, or failed to be. What was read is
// in the reader's buffer then, where all look for it.
func newUpstreamConn(conn net.Conn, key idle.Key, early []byte, broken error) *upstreamConn {
	u := &upstreamConn{Conn: conn, Slot: idle.NewSlot[*upstreamConn](key), early: early, broken: broken}
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

// quiet is whether an idle connection is open and has nothing to be read.
func (u *upstreamConn) quiet() bool {
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
	look := func(fd uintptr) { n, err = sock.Peek(int(fd)) }
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

// put keeps a connection for the next request with its key.
func (d *upstreamPool) put(u *upstreamConn) {
	u.resize(sock.Small)
	u.used = true
	if u.reader != nil && u.reader.Size() > readerSize {
		u.reader = bufio.NewReaderSize(u, readerSize)
	}
	d.mu.Lock()
	surplus, ok := d.idle.Put(u, time.Now())
	if d.sweeping == nil && d.idle.Len() > 0 {
		d.sweeping = time.AfterFunc(upstreamIdle, d.sweep)
	}
	d.mu.Unlock()
	if ok {
		_ = surplus.Close()
	}
}

// sweep closes the connections that nobody used for long: the endpoint may have closed its side.
func (d *upstreamPool) sweep() {
	var old []*upstreamConn
	now := time.Now()
	d.mu.Lock()
	for u, ok := d.idle.Expired(now); ok; u, ok = d.idle.Expired(now) {
		old = append(old, u)
	}
	d.sweeping = nil
	if d.idle.Len() > 0 {
		d.sweeping = time.AfterFunc(upstreamIdle/4, d.sweep)
	}
	d.mu.Unlock()
	for _, u := range old {
		_ = u.Close()
	}
}

// drop closes the kept connections to an endpoint.
func (d *upstreamPool) drop(addr netip.AddrPort) {
	d.mu.Lock()
	kept := d.idle.RemoveAll(addr)
	d.mu.Unlock()
	for _, u := range kept {
		_ = u.Close()
	}
	d.loops.Drop(addr)
}

// close closes the kept connections, and those that come back.
func (d *upstreamPool) close() {
	d.mu.Lock()
	all := d.idle.Close()
	if d.sweeping != nil {
		d.sweeping.Stop()
	}
	d.mu.Unlock()
	for _, u := range all {
		_ = u.Close()
	}
	d.loops.Close()
}
