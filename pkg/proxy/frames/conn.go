// Package frames bounds what a client of HTTP/2 may ask of its connection beside requests and their content. Pings,
// settings, window updates, priorities, unknown frames, empty ones and streams that are given up before they are
// answered cost the server some microseconds each, and nothing in the protocol bounds them (CVE-2019-9511 to 9518,
// 2023-44487, 2024-27316, 2025-8671). A header has a time, too: from its first frame to its last one.
//
// It reads the frames' headers (RFC 9113, section 4.1) as they pass, and changes nothing. net/http's server has no hook
// for that, but takes any net.Conn.
package frames

import (
	"crypto/tls"
	"encoding/binary"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// What a frame costs, and what brings the budget up again: time, and what is sent to the client. An answer's header
// pays for its request and what comes with it; content pays for the pings and window updates that measure and follow
// it.
const (
	budgetMost      = 4000
	budgetPerSecond = 500

	costStream       = 5 // HEADERS
	costWindowUpdate = 2 // of which each may ask for one byte of content
	costOther        = 1

	earnHeader       = 20
	earnContent      = 10 // of a DATA frame at most, one for earnContentBytes
	earnContentBytes = 16

	// earnPiece is what a write with content earns at least: grpc-go sends a window update and a ping for each small
	// message of a stream. It is not for each frame, since one of the client's may ask for a frame of each stream.
	earnPiece = costWindowUpdate + costOther
)

// goAwayTime is how long a client has to take the frame that tells it why.
const goAwayTime = time.Second

// Of a GOAWAY: its payload's length, its codes (RFC 9113, section 7), and the highest number of a stream.
const (
	goAwayPayload   = 8
	noError         = 0x0
	enhanceYourCalm = 0xb
	mostStream      = 1<<31 - 1
)

// Drop is why a connection was ended.
type Drop uint8

// The reasons.
const (
	Flood  Drop = iota // too many frames that are neither requests nor content
	Header             // a request's header did not end in time
)

// String is the reason's label.
func (d Drop) String() string {
	switch d {
	case Flood:
		return "http2_flood"
	case Header:
		return "http2_header"
	default:
		return "unknown"
	}
}

// Conn is a server's connection of HTTP/2 behind the client's preface. [New] makes it.
type Conn struct {
	net.Conn
	start   time.Time
	header  time.Duration
	dropped func(Drop)
	once    sync.Once

	// Of the reader.
	in      scanner
	block   bool          // the frames of a header have not all begun
	begun   atomic.Int64  // when the header began that is being received, in nanoseconds since start; 0 if there is none
	highest atomic.Uint32 // stream of the client's

	mu     sync.Mutex
	budget int
	filled time.Time   // when time last counted for the budget
	timer  *time.Timer // looks at begun; nil while there is no need
	closed bool

	writing sync.Mutex
	out     scanner
}

// secure is a Conn of which a server wants to know the state of TLS.
type secure struct {
	*Conn
	state func() tls.ConnectionState
}

// ConnectionState is what net/http asks for.
func (s secure) ConnectionState() tls.ConnectionState { return s.state() }

// New bounds a connection's frames, and its headers' time unless that is 0. It calls dropped, once, when it ends the
// connection for it.
func New(c net.Conn, header time.Duration, dropped func(Drop)) net.Conn {
	now := time.Now()
	made := &Conn{Conn: c, start: now, header: header, dropped: dropped, budget: budgetMost, filled: now}
	if t, ok := c.(interface{ ConnectionState() tls.ConnectionState }); ok {
		return secure{made, t.ConnectionState}
	}
	return made
}

// NetConn is the connection below.
func (c *Conn) NetConn() net.Conn { return c.Conn }

// Read implements net.Conn.
func (c *Conn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	cost := 0
	for rest := b[:n]; ; {
		frame, after, ok := c.in.next(rest)
		if !ok {
			break
		}
		rest = after
		cost += c.received(frame)
	}
	if cost > 0 && !c.pay(cost) {
		c.drop(Flood)
		return 0, net.ErrClosed
	}
	c.watchHeader()
	return n, err
}

// received notes a frame's beginning, and tells what it costs.
func (c *Conn) received(f frame) int {
	switch f.kind {
	case kindData:
		if f.length == 0 || f.flags&flagPadded != 0 && f.length <= mostPadding {
			return costOther
		}
		return 0
	case kindHeaders:
		c.block = f.flags&flagEndHeaders == 0
		c.highest.Store(max(c.highest.Load(), f.stream))
		return costStream
	case kindContinuation:
		c.block = c.block && f.flags&flagEndHeaders == 0
		return costOther
	case kindWindowUpdate:
		return costWindowUpdate
	default:
		return costOther
	}
}

// watchHeader notes whether a header is being received. A timer looks at that, which costs less than one for each
// header.
func (c *Conn) watchHeader() {
	under := c.block || c.in.left > 0 && (c.in.frame.kind == kindHeaders || c.in.frame.kind == kindContinuation)
	switch begun := c.begun.Load(); {
	case c.header <= 0:
	case !under && begun != 0:
		c.begun.Store(0)
	case under && begun == 0:
		c.begun.Store(max(int64(time.Since(c.start)), 1))
		c.mu.Lock()
		if c.timer == nil && !c.closed {
			c.timer = time.AfterFunc(c.header, c.look)
		}
		c.mu.Unlock()
	}
}

// look ends the connection if its header is late.
func (c *Conn) look() {
	c.mu.Lock()
	begun := c.begun.Load()
	left := c.header - (time.Since(c.start) - time.Duration(begun))
	late := false
	switch {
	case c.closed:
	case begun == 0:
		c.timer = nil
	case left > 0:
		c.timer.Reset(left)
	default:
		late = true
	}
	c.mu.Unlock()
	if late {
		c.drop(Header)
	}
}

// pay takes a cost from the budget; false where there is too little left.
func (c *Conn) pay(cost int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.budget -= cost; c.budget >= 0 {
		return true
	}
	now := time.Now()
	earned := now.Sub(c.filled) * budgetPerSecond / time.Second
	c.filled = now
	c.budget = min(c.budget+int(min(earned, 2*budgetMost)), budgetMost)
	return c.budget >= 0
}

func (c *Conn) earn(n int) {
	c.mu.Lock()
	c.budget = min(c.budget+n, budgetMost)
	c.mu.Unlock()
}

// Write implements net.Conn.
func (c *Conn) Write(b []byte) (int, error) {
	c.writing.Lock()
	defer c.writing.Unlock()
	n, err := c.Conn.Write(b)
	earned, content := 0, 0
	for rest := b[:n]; ; {
		frame, after, ok := c.out.next(rest)
		if !ok {
			break
		}
		rest = after
		switch {
		case frame.kind == kindHeaders:
			earned += earnHeader
		case frame.kind == kindData && frame.length > 0:
			content = max(content+min(int(frame.length)/earnContentBytes, earnContent), earnPiece)
		}
	}
	if earned += content; earned > 0 {
		c.earn(earned)
	}
	return n, err
}

// Close implements net.Conn.
func (c *Conn) Close() error {
	c.once.Do(func() {}) // nothing is dropped any more
	c.mu.Lock()
	c.closed = true
	if c.timer != nil {
		c.timer.Stop()
	}
	c.mu.Unlock()
	return c.Conn.Close()
}

// drop tells the client why, and ends the connection.
func (c *Conn) drop(why Drop) {
	c.once.Do(func() {
		c.dropped(why)
		_ = c.Conn.SetWriteDeadline(time.Now().Add(goAwayTime))
		c.goAway(c.highest.Load(), enhanceYourCalm)
		_ = c.Conn.Close()
	})
}

// GoAway asks the client to open no more streams, and says nothing of those that it has opened (RFC 9113, section 6.8).
func (c *Conn) GoAway() { c.goAway(mostStream, noError) }

// goAway writes a frame between two others, unless somebody is writing one.
func (c *Conn) goAway(last, code uint32) {
	if !c.writing.TryLock() {
		return
	}
	defer c.writing.Unlock()
	if c.out.have > 0 || c.out.left > 0 {
		return
	}
	b := []byte{0, 0, goAwayPayload, kindGoAway, 0, 0, 0, 0, 0}
	b = binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(b, last), code)
	_, _ = c.Conn.Write(b)
}
