package http1

import (
	"bytes"
	"errors"
	"net/netip"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/pkg/proxy/loop"
	"github.com/tinkerbell/stack/pkg/proxy/sock"
)

// Conn is a client's connection in an event loop.
type Conn struct {
	engine  *Engine
	owner   Owner
	limits  Limits
	fd      int
	handle  loop.Handle
	place   int // among the engine's connections
	peer    netip.Addr
	phase   atomic.Uint32
	last    bool // there may be an end behind what is read
	more    bool // something has come that has not been read
	sending bool // the client has to take the rest of an answer
	paused  bool // something is waited for that is no socket: the route, or a file
	endings int  // how many bytes of line ends may still come behind a POST
	closes  bool // behind the answer, once Resume is called
	gone    bool // from the loop
	since   time.Time
	acked   uint64 // bytes of answers that the client is known to have taken

	// Of the request that is being answered.
	exchange *Exchange // nil between requests
	upstream *upstream // nil unless an endpoint has been asked
}

// Phases of a connection.
const (
	phaseSilent  = iota // nothing has come yet
	phaseBusy           // or handed off
	phaseWaiting        // for the next request
	phaseClosed         // in that wait
)

// answerWait is how long an endpoint may take; then a goroutine may as well be woken for it.
const answerWait = loop.Tick

// Begin takes the connection in. The engine closes it, or hands it off.
func (c *Conn) Begin(owner Owner, limits Limits) {
	c.owner, c.limits = owner, limits
	c.engine.add(c)
}

// Owner is what Begin was given.
func (c *Conn) Owner() Owner { return c.owner }

// wait waits for the next request.
func (c *Conn) wait() {
	c.more = false
	if c.handle != (loop.Handle{}) {
		return
	}
	var err error
	if c.handle, err = c.engine.loop.Watch(c.fd, loop.Stream, c); err != nil {
		c.HandOff()
	}
}

// Ready implements loop.Watcher.
func (c *Conn) Ready(e loop.Events) {
	c.last = c.last || e.Last()
	switch {
	case c.sending && !c.paused && e.Writable():
		c.more = c.more || e.Readable()
		c.flush()
	case c.exchange != nil || c.paused:
		c.more = true
	case e.Readable():
		c.Read()
	}
}

// Read takes the next request.
func (c *Conn) Read() {
	x := newExchange(c)
	n, err := sock.Read(c.fd, x.in[:])
	if errors.Is(err, unix.EAGAIN) {
		x.free()
		c.wait()
		return
	}
	if n == 0 || !c.phase.CompareAndSwap(phaseWaiting, phaseBusy) && !c.phase.CompareAndSwap(phaseSilent, phaseBusy) {
		x.free()
		c.close()
		return
	}
	c.more = c.last || n == len(x.in)
	if skipped := lineEnds(x.in[:min(n, c.endings)]); skipped > 0 {
		c.endings -= skipped
		c.owner.Received(skipped)
		if n = copy(x.in[:], x.in[skipped:n]); n == 0 {
			x.free()
			c.next(false)
			return
		}
	}
	x.size = n
	route := c.owner.Route()
	if route == nil || !x.begin(route, c.engine.loop.Now()) {
		c.handOff(x.in[:n], nil)
		x.free()
		return
	}
	c.exchange, c.since, c.endings = x, x.Start, 0
	if x.File != nil {
		x.Request.close = x.Request.close || c.owner.Retired()
		x.answerFile()
		c.flush()
		return
	}
	if x.Request.Post {
		c.endings = mostLineEnds
	}
	c.ask()
}

// mostLineEnds is how many bytes of line ends are skipped between a POST and the next request, as net/http's server
// does: there are clients that send an empty line behind the body.
const mostLineEnds = 4

// lineEnds is how many bytes of line ends something begins with.
func lineEnds(b []byte) int { return len(b) - len(bytes.TrimLeft(b, "\r\n")) }

// ask gives the request to a connection to the endpoint.
func (c *Conn) ask() {
	x, pool := c.exchange, c.engine.poolOf(c.exchange.route.Upstreams())
	if x.Request.safe() { // else a connection that the endpoint has closed meanwhile would be the client's loss
		c.upstream = pool.take(x.Key)
	}
	if c.upstream == nil {
		var err error
		if c.upstream, err = pool.open(x.Key); err != nil {
			c.redial()
			return
		}
	}
	if c.upstream.conn = c; !c.upstream.connecting {
		c.send()
	}
}

// send writes the request; false if the connection has left the loop.
func (c *Conn) send() bool {
	out := c.exchange.out
	n, err := sock.Write(c.upstream.fd, out)
	if n == len(out) {
		return true
	}
	if errors.Is(err, unix.EAGAIN) {
		err = nil
	}
	c.leave(&Asked{Unsent: bytes.Clone(out[n:]), Failure: err})
	return false
}

// receive reads the answer, and passes it on once it is whole.
func (c *Conn) receive() {
	x, room := c.exchange, c.engine.loop.Buffer()[:MostAnswer]
	have := copy(room, x.reply)
	for {
		n, err := sock.Read(c.upstream.fd, room[have:])
		if errors.Is(err, unix.EAGAIN) {
			break
		}
		have += n
		if n == 0 {
			c.leave(&Asked{Early: bytes.Clone(room[:have]), Ended: true, Failure: err})
			return
		}
		whole, wait := x.judge(room[:have])
		if whole {
			c.answer(room[:have])
			return
		}
		if !wait {
			c.leave(&Asked{Early: bytes.Clone(room[:have])})
			return
		}
		if !c.upstream.last { // all that has come was read
			break
		}
	}
	x.reply = append(x.reply[:0], room[:have]...)
}

// answer passes an endpoint's answer on.
func (c *Conn) answer(read []byte) {
	x, u := c.exchange, c.upstream
	x.Endpoint.Succeeded()
	x.Request.close = x.Request.close || c.owner.Retired()
	x.answerFrom(read)
	c.upstream = nil
	if x.answer.close || u.last {
		u.close()
	} else {
		u.pool.put(u)
	}
	c.flush()
}

// flush writes what the client takes of the answer, and goes on to the next request behind it.
func (c *Conn) flush() {
	x := c.exchange
	for x.written < x.total {
		part, n, err := x.send(c.fd)
		c.owner.Sent(int(n))
		x.written += n
		switch {
		case errors.Is(err, errAbsent):
			c.load()
			return
		case errors.Is(err, unix.EAGAIN), err == nil && n < part:
			if err = c.waitToSend(); err == nil {
				return
			}
		}
		if err != nil {
			c.end(true, true)
			return
		}
	}
	c.end(false, x.Request.close)
}

// load waits for a part of a file that has left the memory, in a goroutine.
func (c *Conn) load() {
	x := c.exchange
	c.paused = true
	c.engine.open.Go(func() {
		err := x.File.Load(x.written - int64(len(x.out)))
		done := make(chan struct{})
		c.engine.Soon(func() {
			defer close(done)
			c.paused = false
			switch {
			case c.gone:
				c.finish(x, x.result(true))
			case err != nil:
				c.end(true, true)
			default:
				c.flush()
			}
		})
		<-done
	})
}

// end ends the exchange whose answer was written, or broke off, and goes on to the next request or closes the
// connection.
func (c *Conn) end(torn, closes bool) {
	x := c.exchange
	c.exchange, c.sending = nil, false
	if c.finish(x, x.result(torn)) {
		c.paused, c.closes = true, closes
		return
	}
	c.next(closes)
}

// finish lets go of a request.
func (c *Conn) finish(x *Exchange, r Result) (waits bool) {
	if x.Endpoint != nil {
		x.Endpoint.Release()
	}
	c.owner.Received(x.size)
	waits = x.route.Ended(x, r)
	if x.File != nil {
		x.File.Close()
	}
	x.free()
	return waits
}

// Resume goes on with a connection that a route has made wait. Any goroutine may call it.
func (c *Conn) Resume() {
	c.engine.Soon(func() {
		if c.paused = false; !c.gone {
			c.next(c.closes || c.engine.hasEnded())
		}
	})
}

// next waits for the next request and reads what has come of it, or closes the connection.
func (c *Conn) next(closes bool) {
	if closes {
		c.close()
		return
	}
	c.since = c.engine.loop.Now()
	c.phase.Store(phaseWaiting)
	if c.more || c.handle == (loop.Handle{}) {
		c.Read()
	}
}

// waitToSend waits until the client takes more of the answer.
func (c *Conn) waitToSend() (err error) {
	if c.sending {
		return nil
	}
	c.sending, c.since = true, c.engine.loop.Now()
	c.engine.loop.Release(c.fd, c.handle)
	c.handle, err = c.engine.loop.Watch(c.fd, loop.Connecting, c)
	return err
}

// tick looks whether the time is up.
func (c *Conn) tick(now time.Time) {
	past := now.Sub(c.since)
	switch {
	case c.paused:
	case c.sending:
		c.stalled(now, past)
	case c.exchange != nil && past < answerWait:
	case c.exchange != nil && c.upstream.connecting:
		c.redial()
	case c.exchange != nil:
		c.leave(&Asked{Early: bytes.Clone(c.exchange.reply)})
	default:
		limit := c.limits.Header
		if c.phase.Load() != phaseSilent {
			limit = c.limits.Idle
		}
		if limit > 0 && past >= limit {
			c.close()
		}
	}
}

// stalled closes the connection when the client has taken nothing of its answer for too long.
func (c *Conn) stalled(now time.Time, past time.Duration) {
	if acked, err := sock.Acked(c.fd); err == nil && acked != c.acked {
		c.acked, c.since = acked, now
		c.owner.Progress()
		return
	}
	if c.limits.Stall > 0 && past >= c.limits.Stall {
		c.close()
	}
}

// StopWaiting is whether the connection waited for its next request, and StopSilent whether nothing has come yet. No
// request is taken then any more, and the caller is to close the connection. Any goroutine may call them.
func (c *Conn) StopWaiting() bool { return c.phase.CompareAndSwap(phaseWaiting, phaseClosed) }

// StopSilent is described at StopWaiting.
func (c *Conn) StopSilent() bool { return c.phase.CompareAndSwap(phaseSilent, phaseClosed) }

// Close closes the connection soon, unless it has left. Any goroutine may call it.
func (c *Conn) Close() {
	c.engine.Soon(func() {
		if !c.gone {
			c.close()
		}
	})
}

// Refuse resets the connection, in the loop's thread.
func (c *Conn) Refuse() {
	sock.ResetOnClose(c.fd)
	c.close()
}

// close closes the connection.
func (c *Conn) close() {
	x := c.exchange
	c.exchange = nil
	switch {
	case x == nil, c.paused: // the goroutine that loads the file ends the request
	case c.upstream != nil:
		c.upstream.close()
		c.upstream = nil
		c.finish(x, Result{Code: CodeGone, Gone: true})
	default:
		c.finish(x, x.result(true))
	}
	c.gone = true
	c.engine.remove(c)
	c.owner.Closed()
	c.engine.close(c.fd, c.handle)
	c.engine.open.Done()
}

// redial leaves it to the owner to connect: here it failed, or took long.
func (c *Conn) redial() {
	if c.upstream != nil {
		c.upstream.close()
		c.upstream = nil
	}
	c.leave(nil)
}

// leave hands the connection off in the midst of a request: with the endpoint's connection, or without, where none was
// made. A request that must not be sent twice begins anew then.
func (c *Conn) leave(asked *Asked) {
	x, u := c.exchange, c.upstream
	c.exchange, c.upstream = nil, nil
	a := &Attempt{Start: x.Start, Endpoint: x.Endpoint, Upstream: asked}
	switch {
	case asked != nil:
		c.engine.loop.Release(u.fd, u.handle)
		asked.FD, asked.Key, asked.Used = u.fd, u.Key(), u.used
	case !x.Request.safe():
		x.Endpoint.Release()
		a = nil
	}
	x.route.HandedOff(x)
	c.handOff(x.in[:x.size], a)
	x.free()
}

// HandOff gives the connection back to the owner, between two requests.
func (c *Conn) HandOff() { c.handOff(nil, nil) }

func (c *Conn) handOff(early []byte, a *Attempt) {
	c.gone = true
	c.engine.remove(c)
	c.engine.loop.Release(c.fd, c.handle)
	c.owner.HandOff(Handoff{FD: c.fd, Early: bytes.Clone(early), Attempt: a})
	c.engine.open.Done()
}
