package web

import (
	"errors"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tinkerbell/stack/pkg/proxy/admission"
	"github.com/tinkerbell/stack/pkg/proxy/http1"
)

// What connections and requests cost, in bytes, as measured: the kernel's structures, goroutines with their stacks,
// buffers, and what the garbage collector leaves in between.
const (
	costConnection = 24 << 10
	costTLS        = 32 << 10 // more
	costHTTP2      = 16 << 10 // more
	// costRequest is for a request under way, costBody more for one with a body (which goes by http.Transport).
	costRequest = 16 << 10
	costBody    = 24 << 10
	// costStreamed is for an answer that the engine passes on in pieces.
	costStreamed = http1.Piece
	// unchargedPiece is how much is read at a time of an answer for which there is no room.
	unchargedPiece = 4 << 10
	// costStream is more for a stream of HTTP/2.
	costStream = 48 << 10
	// longAnswer is where an answer gets larger buffers.
	longAnswer = 64 << 10
	// A byte of a header costs factorUnread bytes while it is read, and factorHeader in its request.
	factorUnread, factorHeader = 4, 2
	// unreadFree bytes that no request has taken yet are in the connection's own cost, unreadStep are charged at a time.
	unreadFree, unreadStep = 4 << 10, 16 << 10
	// unreadMost is what is held of a multiplexed connection at most: a header and its window of bodies.
	unreadMost = 64<<10 + window
	// connectionDescriptors are a connection's: its own, and that to an endpoint or of a file.
	connectionDescriptors = 2
)

// Bounds of HTTP/2.
const (
	maxStreams = 250
	// window is what a client may send of bodies before they are read, on a stream and a connection, in bytes.
	window = 64 << 10
	// upstreamWindow is the same for the answers of an endpoint, by stream.
	upstreamWindow = 64 << 10
)

// noRoom is the text for a request for which there is no memory.
const noRoom = "no room for another request"

// errNoRoom ends a connection for which there is no memory.
var errNoRoom = errors.New("there is no room for the connection")

func http2Config() *http.HTTP2Config {
	return &http.HTTP2Config{
		SendPingTimeout: 30 * time.Second, PingTimeout: 15 * time.Second, MaxConcurrentStreams: maxStreams,
		MaxReceiveBufferPerStream: window, MaxReceiveBufferPerConnection: window,
		// The least that HTTP/2 has (RFC 9113, section 4.2); net/http would buffer a frame of 1 MiB.
		MaxReadFrameSize: 16 << 10,
	}
}

// costOf is what a new connection costs.
func costOf(s *Settings) admission.Cost {
	c := admission.Cost{Memory: costConnection, Descriptors: connectionDescriptors}
	if s.TLS != nil {
		c.Memory += costTLS
	}
	if s.TLS != nil || s.any(isGRPC) {
		c.Memory += costHTTP2
	}
	return c
}

// patience is how many requests of a connection are turned down before it is closed.
const patience = 4

// reapTime is how long goroutines have to notice that their connection was given up.
const reapTime = time.Second

// reap closes, a little later, what was given up and still has goroutines that wait for something else: an endpoint
// that does not read, a peer behind an upgrade.
func (l *connections) reap() {
	if !l.reaping.Swap(true) {
		time.AfterFunc(reapTime, func() {
			l.reaping.Store(false)
			l.closeWhere(func(c *accepted) bool { return c.evicted.Load() })
		})
	}
}

// unread is what a client has sent and no request has taken: a header that is not whole, or bodies in HTTP/2.
type unread struct {
	bytes   atomic.Int64
	charged int64        // belongs to the goroutine that reads
	busy    atomic.Int32 // requests of HTTP/1.1 under way: what is read then is a body, as it is asked for
	faded   time.Time    // when a multiplexed connection's bytes were last halved

	entering   sync.Mutex   // one by one, of HTTP/2's streams
	turnedDown atomic.Int32 // requests for which there was no room
}

// fadeEvery is how often half of what has come on a multiplexed connection is taken for gone.
const fadeEvery = time.Minute

// fade forgets slowly. In HTTP/2 most of what comes is never a request's: frames' heads, windows, pings. A connection
// that is open for months must not be charged for all that it ever sent; and a header that does not end ends with
// the connection: amid a header a client cannot answer our ping. No more than windows and a header is held at any time.
func (u *unread) fade(now time.Time) {
	held := min(u.bytes.Load(), unreadMost)
	if now.Sub(u.faded) >= fadeEvery {
		held, u.faded = held/2, now
	}
	u.bytes.Store(held)
}

// chargeUnread charges what has come; false when there is no room for it.
func (c *conn) chargeUnread(n int) bool {
	u := &c.unread
	if u.busy.Load() > 0 {
		return true
	}
	if c.multiplexed.Load() {
		u.fade(time.Now())
	}
	due := int64(0)
	if held := u.bytes.Add(int64(n)); held > unreadFree {
		due = (held + unreadStep - 1) / unreadStep * unreadStep * factorUnread
	}
	switch {
	case due > u.charged:
		if c.charge.Grow(due-u.charged) != admission.Admitted {
			c.Evict()
			return false
		}
	case due < u.charged:
		c.charge.Shrink(u.charged - due)
	}
	u.charged = due
	return true
}

// taken notes that a request has taken bytes of a body.
func (u *unread) taken(n int) {
	if u.bytes.Add(-int64(n)) < 0 {
		u.bytes.Store(0)
	}
}

// charge is what a request has been charged: in HTTP/1.1 as a part of its connection, in HTTP/2 on its own.
type charge struct {
	conn   *conn
	grown  int64
	stream admission.Charge

	mu   sync.Mutex
	over bool
}

// enter charges a request and its header. The header's bytes are no longer the connection's unread ones: at its next
// read the connection's own charge goes down by them.
func (r *response) enter(
	request *http.Request, settings *Settings, account *admission.Charges, body bool,
) admission.Refusal {
	c := connOfRequest(request)
	if c == nil {
		return admission.Admitted
	}
	cost := costRequest + factorHeader*max(c.unread.bytes.Swap(0)-unreadFree, 0)
	if body {
		cost += costBody
	}
	if request.ProtoMajor == 2 {
		c.multiplexed.Store(true)
		// One by one: when a few of fifty that came at once were refused (patience), the connection is evicted, and the
		// others are refused without asking the account.
		c.unread.entering.Lock()
		defer c.unread.entering.Unlock()
		if c.evicted.Load() { // it has ended, but for the goroutines of its requests
			return admission.Memory
		}
		cost += costStream
		if body {
			request.Body = &counted{request.Body, &c.unread}
		}
		why := account.Admit(&r.charged.stream, r, Client(request, settings.Trusted), admission.Cost{Memory: cost})
		if why != admission.Admitted && c.unread.turnedDown.Add(1) > patience {
			c.Evict() // it asks on and on, which costs time if not memory
		}
		return why
	}
	c.unread.busy.Add(1)
	r.charged.conn = c
	c.charge.Touch()
	why := c.charge.Grow(cost)
	if why == admission.Admitted {
		r.charged.grown = cost
	}
	return why
}

// giveBack gives back what enter has charged.
func (r *response) giveBack() {
	r.charged.mu.Lock()
	r.charged.over = true
	r.charged.mu.Unlock()
	r.charged.stream.Release()
	if c := r.charged.conn; c != nil {
		c.nextAnswer()
		c.charge.Shrink(r.charged.grown)
		c.charge.Touch()
		c.unread.busy.Add(-1)
	}
}

// Evict implements admission.Holder, for a stream of HTTP/2: it is reset.
func (r *response) Evict() {
	go func() { // the connection's own goroutine may be writing
		r.charged.mu.Lock()
		defer r.charged.mu.Unlock()
		if r.charged.over {
			return
		}
		control, past := http.NewResponseController(r.ResponseWriter), time.Unix(1, 0)
		_ = control.SetReadDeadline(past)
		_ = control.SetWriteDeadline(past)
	}()
}

// counted is a body in HTTP/2.
type counted struct {
	io.ReadCloser
	unread *unread
}

// Read implements io.Reader.
func (c *counted) Read(b []byte) (int, error) {
	n, err := c.ReadCloser.Read(b)
	c.unread.taken(n)
	return n, err
}
