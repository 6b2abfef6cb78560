package web

import (
	"net"
	"net/http"
	"sync"
	"time"
)

// idling bounds how long a connection may be idle, on a server that speaks HTTP/2. It stands in for
// [http.Server.IdleTimeout], which keeps the memory of a connection of HTTP/2 for as long as it lasts, some 40 KiB,
// when the connection ends with streams open: net/http stops the timer, and then closes the streams, the last of
// which starts it again (go1.26, http2serverConn.serve and closeStream). Clients that come and go would have all of
// the memory.
type idling struct {
	limit time.Duration // 0 is none

	mu    sync.Mutex
	timer *time.Timer
	since time.Time // when the connection became idle; zero while it is not
	told  bool      // the client has had a GOAWAY
	ended bool
}

// goAwayTime is how long a client has to take note of a GOAWAY before its idle connection is closed.
const goAwayTime = time.Second

// idlingState implements [http.Server.ConnState].
func idlingState(nc net.Conn, state http.ConnState) {
	c := connBelow(nc)
	if c == nil {
		return
	}
	switch state {
	case http.StateIdle:
		c.idling.begin(func() { c.idled(nc) })
	case http.StateActive:
		c.idling.end()
	case http.StateHijacked, http.StateClosed:
		c.idling.stop()
	}
}

// begin is called when the connection becomes idle, and calls expired when it has been idle for too long.
func (i *idling) begin(expired func()) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.ended || i.limit <= 0 {
		return
	}
	i.since = time.Now()
	switch {
	case i.timer == nil:
		i.timer = time.AfterFunc(i.limit, expired)
	case i.told:
		i.timer.Reset(goAwayTime)
	}
}

// end is called when a request has come. The timer goes on, and looks again: to move it each time would cost more.
func (i *idling) end() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.since = time.Time{}
}

// stop is called when the connection has ended, or is not net/http's any more. Nothing is kept in memory for it.
func (i *idling) stop() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.ended = true
	if i.timer != nil {
		i.timer.Stop()
	}
}

// deadline is when the connection's wait for a request ends. Only net/http's HTTP/1.1 asks, each time that it begins to
// wait: it closes the connection itself then.
func (i *idling) deadline() (at time.Time, idle bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.since.IsZero() || i.ended {
		return time.Time{}, false
	}
	at = i.since.Add(i.limit)
	i.since = time.Time{}
	return at, true
}

// due is what has to be done with an idle connection.
type due int

const (
	dueNothing due = iota
	dueGoAway
	dueClose
)

// expired is what the connection is due for now.
func (i *idling) expired() due {
	i.mu.Lock()
	defer i.mu.Unlock()
	switch left := i.limit - time.Since(i.since); {
	case i.ended:
		return dueNothing
	case i.since.IsZero():
		if !i.told { // else the timer is set when the requests under way have ended
			i.timer.Reset(i.limit)
		}
		return dueNothing
	case i.told:
		return dueClose
	case left > 0:
		i.timer.Reset(left)
		return dueNothing
	}
	i.told = true
	i.timer.Reset(goAwayTime)
	return dueGoAway
}

// idled ends a connection of HTTP/2 that has been idle for too long, as RFC 9113, section 6.8, has it: a GOAWAY first,
// that says nothing of the last stream, so that a request which is on its way is still served.
func (c *conn) idled(nc net.Conn) {
	switch c.idling.expired() {
	case dueGoAway:
		if framed, ok := nc.(interface{ GoAway() }); ok {
			framed.GoAway()
		}
	case dueClose:
		_ = nc.Close()
	}
}

// SetReadDeadline implements net.Conn.
func (c *conn) SetReadDeadline(t time.Time) error {
	if t.IsZero() && c.idling.limit > 0 {
		if at, idle := c.idling.deadline(); idle {
			t = at
		}
	}
	return c.socket.SetReadDeadline(t)
}
