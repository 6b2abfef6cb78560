package http1

import (
	"bytes"
	"errors"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/pkg/proxy/loop"
	"github.com/tinkerbell/stack/pkg/proxy/sock"
)

// Conn is a client's connection in an event loop. All of its methods but Close and Abort are for the loop's thread.
type Conn struct {
	engine *Engine
	owner  Owner
	limits Limits
	client socket
	place  int // among the engine's connections
	peer   netip.Addr

	state   state
	rested  state     // where the connection goes on after it rested
	between state     // where it waits for a request: silent until the first byte, then waiting
	since   time.Time // when the wait began that a limit is for
	acked   uint64    // bytes that the client had acknowledged when the loop last looked
	endings int       // how many bytes of line ends may still follow a POST

	// Of the request that is being answered.
	exchange *Exchange     // nil between requests
	upstream *upstream     // nil unless an endpoint is asked
	loading  chan struct{} // closed if the connection is closed while a file is loaded; nil otherwise
}

// state is what a connection does, or what it waits for.
type state uint8

const (
	none state = iota // no state: an event changes nothing

	// A connection waits in these.
	silent     // for the client's first byte
	waiting    // for the next request
	resting    // for the loop to serve its other sockets
	connecting // to an endpoint
	unsent     // for the endpoint to take the rest of the request
	asked      // for the head of the answer
	receiving  // for more of the body
	blocked    // for the client to take more
	loading    // for a part of a file
	gone       // for nothing: it is closed, or handed off

	// It does something in these, until it has to wait.
	reading // a request
	dialed  // has connected, or failed to
	asking  // sends the request
	hearing // reads the head of the answer
	passing // passes the answer on
	states  // how many there are

	goesOn // no state, but what a step returns that need not wait
)

// event is what a connection waits for.
type event uint8

const (
	clientReadable event = iota
	clientWritable
	endpointReady
	loaded
	turn   // the loop has served its other sockets
	events // how many there are
)

// moves is the table of a connection's events: the state in which it goes on. Any other event is only noted
// ([socket.note]). The event turn is not in it: the connection goes on where it rested. Three more come from elsewhere:
// time ([Conn.tick]), a client that has reset it ([Conn.closeIfReset]), and Close.
var moves = [states][events]state{
	silent:     {clientReadable: reading},
	waiting:    {clientReadable: reading},
	connecting: {endpointReady: dialed},
	unsent:     {endpointReady: asking},
	asked:      {endpointReady: hearing},
	receiving:  {endpointReady: passing},
	blocked:    {clientWritable: passing},
	loading:    {loaded: passing},
}

// on goes on with the connection after an event.
func (c *Conn) on(e event) {
	next := moves[c.state][e]
	if c.state == resting && e == turn {
		next = c.rested
	}
	if next != none {
		c.run(next)
	}
}

// run goes on from a state until the connection has to wait.
func (c *Conn) run(s state) {
	for requests := 0; ; {
		switch c.state = s; s {
		case reading:
			if requests++; requests > requestsAtOnce {
				s = c.rest(reading)
			} else {
				s = c.read()
			}
		case dialed:
			s = c.dialed()
		case asking:
			s = c.ask()
		case hearing:
			s = c.hear()
		case passing:
			s = c.pass()
		default:
			return
		}
	}
}

// requestsAtOnce is how many requests of one connection are served from memory before the loop's other sockets.
const requestsAtOnce = 16

// rest lets the loop serve its other sockets.
func (c *Conn) rest(next state) state {
	if c.engine.hasEnded() {
		return c.close()
	}
	c.rested = next
	c.engine.loop.Again(c)
	return resting
}

// Add adds the connection to the engine, which closes it or hands it off. It is called before any other method.
func (c *Conn) Add(owner Owner, limits Limits) {
	c.owner, c.limits = owner, limits
	c.engine.add(c)
}

// Owner is what Add was given.
func (c *Conn) Owner() Owner { return c.owner }

// Read reads the first request, which has come by now in most cases.
func (c *Conn) Read() { c.run(reading) }

// Ready implements loop.Watcher.
func (c *Conn) Ready(e loop.Events) {
	c.client.note(e)
	if e.Last() && c.closeIfReset() {
		return
	}
	switch {
	case e.Again():
		c.on(turn)
	case c.state == blocked && e.Writable():
		c.on(clientWritable)
	case e.Readable():
		c.on(clientReadable)
	}
}

// closeIfReset closes a connection that waits for an endpoint and whose client has reset it. A client that has only
// ended its side may read on: half of a TCP connection says nothing about the other one (RFC 9293, section 3.6).
func (c *Conn) closeIfReset() (closed bool) {
	switch c.state {
	case connecting, unsent, asked, receiving:
		if c.client.reset() {
			c.close()
			return true
		}
	}
	return false
}

// read reads one request.
func (c *Conn) read() state {
	x := newExchange(c)
	n, err := c.client.read(x.raw[:])
	switch {
	case errors.Is(err, unix.EAGAIN):
		x.free()
		if err := c.client.watch(c.engine.loop, c); err != nil {
			return c.handOff(nil)
		}
		return c.between
	case n == 0:
		x.free()
		return c.close()
	}
	c.between = waiting
	if skipped := lineEnds(x.raw[:min(n, c.endings)]); skipped > 0 {
		c.endings -= skipped
		c.owner.Received(skipped)
		if n = copy(x.raw[:], x.raw[skipped:n]); n == 0 {
			x.free()
			return c.next(false)
		}
	}
	x.size = n
	route := c.owner.Route()
	if route == nil || !x.parse(route, c.engine.loop.Now()) {
		early := append([]byte(nil), x.raw[:n]...)
		x.free()
		return c.handOff(early)
	}
	c.exchange, c.since, c.endings = x, x.Start, 0
	if x.File != nil {
		x.Request.close = x.Request.close || c.owner.Retired()
		x.answerFile()
		return passing
	}
	if x.Request.Post {
		c.endings = mostLineEnds
	}
	return asking
}

// mostLineEnds is how many bytes of line ends are skipped between a POST and the next request, as net/http's server
// does: there are clients that send an empty line behind the body.
const mostLineEnds = 4

// lineEnds counts the CR and LF bytes at the beginning of b.
func lineEnds(b []byte) int { return len(b) - len(bytes.TrimLeft(b, "\r\n")) }

// end ends the request (err: its answer broke off), and goes on to the next one or closes the connection.
func (c *Conn) end(err error) state {
	x := c.exchange
	c.exchange = nil
	closes := err != nil || x.Request.close
	if x.broken != nil {
		c.tear(x)
	}
	c.hangUp()
	c.finish(x, x.result(err))
	return c.next(closes)
}

// tear has the connection end by a reset if the end of the connection is the only end of the answer that the client can
// see: an end in order would make a part of the answer look whole.
func (c *Conn) tear(x *Exchange) {
	if x.answer.length < 0 && !x.body.toChunks {
		sock.ResetOnClose(c.client.fd)
	}
}

// finish releases the endpoint and the file of a request, and tells the route how the request ended.
func (c *Conn) finish(x *Exchange, r Result) {
	if x.Endpoint != nil {
		x.Endpoint.Release()
	}
	if x.streamed { // the answer broke off, or keepOrClose would have told: the endpoint's connection is not kept
		c.owner.Streamed(false)
	}
	c.owner.Received(x.size)
	x.route.Ended(x, r)
	if x.File != nil {
		x.File.Close()
	}
	x.free()
}

// next waits for the next request and reads what has arrived of it, or closes the connection.
func (c *Conn) next(closes bool) state {
	if closes || c.engine.hasEnded() {
		// A socket that is closed with unread bytes resets the connection, and the client loses its answer.
		if c.client.more {
			_, _ = sock.Read(c.client.fd, c.engine.loop.Buffer())
		}
		return c.close()
	}
	c.since = c.engine.loop.Now()
	if c.client.watched() && !c.client.more {
		return c.between
	}
	return reading
}

// tick applies the limits on time.
func (c *Conn) tick(now time.Time) {
	past := now.Sub(c.since)
	over := func(limit time.Duration) bool { return limit > 0 && past >= limit }
	switch c.state {
	case connecting, unsent, asked, receiving, blocked:
		c.exchange.route.Progressed(c.exchange, c.exchange.result(nil))
	}
	switch c.state {
	case silent:
		if over(c.limits.Header) {
			c.close()
		}
	case waiting:
		if over(c.limits.Idle) {
			c.close()
		}
	case blocked:
		c.stalled(now, past)
	case connecting:
		if over(c.exchange.Dial) {
			c.run(c.failed(whileDialing, os.ErrDeadlineExceeded))
			return
		}
		c.attend(past)
	case unsent, asked:
		if over(c.exchange.Response) {
			c.run(c.failed(whileAsking, os.ErrDeadlineExceeded))
			return
		}
		c.attend(past)
	case receiving:
		c.attend(past)
	}
}

// attend watches a client that waits for long, so that the loop tells when the client goes. Most requests end before
// that, and many connections with them, without a system call for it.
func (c *Conn) attend(past time.Duration) {
	if past < loop.Tick {
		return
	}
	first := !c.client.watched()
	if err := c.client.watch(c.engine.loop, c); err != nil || first || c.client.last {
		c.closeIfReset()
	}
}

// stalled notes what the client has acknowledged, and resets the connection when that was nothing for Limits.Stall. It
// does not go by what the kernel takes, which may have room for more only long after the client has taken something.
func (c *Conn) stalled(now time.Time, past time.Duration) {
	if acked, err := sock.Acked(c.client.fd); err == nil && acked != c.acked {
		c.acked, c.since = acked, now
		c.owner.Progress()
		return
	}
	if c.limits.Stall > 0 && past >= c.limits.Stall {
		c.exchange.stalled = true
		c.Refuse()
	}
}

// Close has the loop close the connection, unless that was handed off. Any goroutine may call it.
func (c *Conn) Close() { c.engine.Soon(func() { c.close() }) }

// Abort is Close by a reset, which frees the memory of the socket's buffers at once. Any goroutine may call it.
func (c *Conn) Abort() { c.engine.Soon(c.Refuse) }

// Refuse closes the connection by a reset.
func (c *Conn) Refuse() {
	if c.state != gone {
		sock.ResetOnClose(c.client.fd)
		c.close()
	}
}

// close closes the connection, with the request that is under way.
func (c *Conn) close() state {
	if c.state == gone {
		return gone
	}
	x := c.exchange
	c.exchange, c.state = nil, gone
	c.hangUp()
	switch {
	case c.loading != nil: // the goroutine that loads the file finishes the request
		close(c.loading)
	case x != nil && x.begun:
		c.tear(x)
		c.finish(x, x.result(unix.ECONNABORTED))
	case x != nil:
		c.finish(x, Result{Code: CodeGone, Gone: true})
	}
	c.engine.remove(c)
	c.owner.Closed()
	c.client.close(c.engine.loop)
	c.engine.open.Done()
	return gone
}

// HandOff hands the connection off to its owner; no request may be under way.
func (c *Conn) HandOff() { c.handOff(nil) }

func (c *Conn) handOff(early []byte) state {
	c.state = gone
	c.engine.remove(c)
	c.engine.loop.Release(c.client.fd, c.client.handle)
	c.owner.HandOff(c.client.fd, early)
	c.engine.open.Done()
	return gone
}
