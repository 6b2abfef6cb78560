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
	last    bool // the loop reported a FIN, an error or an urgent byte: read until the end or EAGAIN
	more    bool // the socket may have bytes that were not read
	sending bool // the client's socket was full, and the loop reports when it takes more
	endings int  // how many bytes of line ends may still follow a POST
	reading bool // Read is serving requests, and goes on where again is set
	again   bool
	queued  bool // Read is called again when the loop has served its other sockets
	gone    bool // closed, or handed off
	since   time.Time
	acked   uint64 // bytes that the client had acknowledged when the loop last looked

	// Of the request that is being answered.
	exchange *Exchange     // nil between requests
	loading  chan struct{} // closed if the connection is closed while a file is loaded; nil otherwise
	upstream *upstream     // nil unless an endpoint has been asked
}

// Phases of a connection.
const (
	phaseSilent  = iota // nothing has come yet
	phaseBusy           // or handed off
	phaseWaiting        // for the next request
	phaseClosed         // StopWaiting or StopSilent was called
)

// answerWait is how long the engine waits for an endpoint to connect and to answer. The loop looks every Tick, so it
// may be twice that. Then the request is handed off: next to such a wait, waking a goroutine costs nothing.
const answerWait = loop.Tick

// Begin adds the connection to the engine, which closes it or hands it off. It is called in the loop's thread, before
// any other method.
func (c *Conn) Begin(owner Owner, limits Limits) {
	c.owner, c.limits = owner, limits
	c.engine.add(c)
}

// Owner is what Begin was given.
func (c *Conn) Owner() Owner { return c.owner }

// wait has the loop report the next bytes. It hands the connection off where the loop cannot watch the socket.
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
	case c.sending && c.loading == nil && e.Writable():
		c.more = c.more || e.Readable()
		c.flush()
	case c.exchange != nil || c.queued:
		c.more = true
	case e.Readable():
		c.Read()
	}
}

// Read reads requests and starts to serve them, or hands the connection off. After some that it has served from memory,
// the loop's other sockets have their turn.
func (c *Conn) Read() {
	c.reading = true
	for range requestsAtOnce {
		c.again = false
		if c.readOne(); !c.again {
			c.reading = false
			return
		}
	}
	c.reading = false
	c.queued = true // until then no event is served but by Read
	if !c.engine.loop.Do(func() {
		if c.queued = false; !c.gone {
			c.Read()
		}
	}) { // the loop ends
		c.close()
	}
}

// requestsAtOnce is how many requests of one connection are served from memory before the loop's other sockets.
const requestsAtOnce = 16

// readOne reads one request and starts to serve it.
func (c *Conn) readOne() {
	x := newExchange(c)
	n, err := sock.Read(c.fd, x.request[:])
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
	c.more = c.last || n == len(x.request)
	if skipped := lineEnds(x.request[:min(n, c.endings)]); skipped > 0 {
		c.endings -= skipped
		c.owner.Received(skipped)
		if n = copy(x.request[:], x.request[skipped:n]); n == 0 {
			x.free()
			c.next(false)
			return
		}
	}
	x.size = n
	route := c.owner.Route()
	if route == nil || !x.begin(route, c.engine.loop.Now()) {
		c.release(x.request[:n], nil)
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

// lineEnds counts the CR and LF bytes at the beginning of b.
func lineEnds(b []byte) int { return len(b) - len(bytes.TrimLeft(b, "\r\n")) }

// ask sends the request on an idle connection to the endpoint, or opens a new one.
func (c *Conn) ask() {
	x, pool := c.exchange, c.engine.poolOf(c.exchange.route.Upstreams())
	// A POST gets a new connection: on an idle one that the endpoint has just closed it would be lost, and could not be
	// sent again.
	if x.Request.safe() {
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
	c.handOffRequest(&PendingUpstream{Unsent: bytes.Clone(out[n:]), Failure: err})
	return false
}

// receive reads the answer, and passes it on once it is whole.
func (c *Conn) receive() {
	x, room := c.exchange, c.engine.loop.Buffer()[:MostAnswer]
	have := copy(room, x.partial)
	for {
		n, err := sock.Read(c.upstream.fd, room[have:])
		if errors.Is(err, unix.EAGAIN) {
			break
		}
		have += n
		if n == 0 {
			c.handOffRequest(&PendingUpstream{Received: bytes.Clone(room[:have]), EOF: true, Failure: err})
			return
		}
		whole, wait := x.judge(room[:have])
		if whole {
			c.answer(room[:have])
			return
		}
		if !wait {
			c.handOffRequest(&PendingUpstream{Received: bytes.Clone(room[:have])})
			return
		}
		if !c.upstream.last { // a short read emptied the socket; the loop reports new bytes
			break
		}
	}
	x.partial = append(x.partial[:0], room[:have]...)
}

// answer passes an endpoint's answer on.
func (c *Conn) answer(read []byte) {
	x, u := c.exchange, c.upstream
	x.Endpoint.Succeeded()
	x.Request.close = x.Request.close || c.owner.Retired()
	x.answerFrom(read)
	c.upstream = nil
	// A POST takes no kept connection: where it left one each time, it would drive out those that others take.
	if x.answer.close || u.last || !x.Request.safe() && !u.pool.idle.Spare(u.Key()) {
		u.close()
	} else {
		u.pool.put(u)
	}
	c.flush()
}

// flush writes the answer until it is complete or the client's socket is full. Behind a complete answer it starts the
// next request.
func (c *Conn) flush() {
	x := c.exchange
	for x.written < x.total {
		part, n, err := x.send(c.fd)
		c.owner.Sent(int(n))
		x.written += n
		switch {
		case errors.Is(err, errAbsent) && x.loads < mostLoads:
			c.load()
			return
		case errors.Is(err, errAbsent):
			x.broken = err
		case errors.Is(err, unix.EAGAIN), err == nil && n < part && x.File == nil: // a file may have become shorter
			if err = c.waitToSend(); err == nil {
				return
			}
		}
		if err != nil {
			c.end(err, true)
			return
		}
		if n > 0 {
			x.loads = 0
		}
	}
	c.end(nil, x.Request.close)
}

// mostLoads is how often in a row a file's part is loaded that has left the memory again when it is to be sent.
const mostLoads = 8

// load has a goroutine load the next part of a file, which is not in memory. The connection goes on behind it.
func (c *Conn) load() {
	x := c.exchange
	x.loads++
	stop := make(chan struct{})
	c.loading = stop
	c.engine.open.Go(func() {
		err := x.File.Load(x.written-int64(len(x.out)), stop)
		done := make(chan struct{})
		c.engine.Soon(func() {
			defer close(done)
			c.loading, c.since = nil, c.engine.loop.Now() // it was not the client that was slow
			if !c.gone {
				x.broken = err
			}
			switch {
			case c.gone:
				c.finish(x, x.result(unix.ECONNABORTED))
			case err != nil:
				c.end(err, true)
			default:
				c.flush()
			}
		})
		<-done
	})
}

// end ends the request, whose answer broke off where there is an error, and goes on to the next one or closes the
// connection.
func (c *Conn) end(err error, closes bool) {
	x := c.exchange
	c.exchange, c.sending = nil, false
	c.finish(x, x.result(err))
	c.next(closes)
}

// finish releases the endpoint and the file of a request, and tells the route how the request ended.
func (c *Conn) finish(x *Exchange, r Result) {
	if x.Endpoint != nil {
		x.Endpoint.Release()
	}
	c.owner.Received(x.size)
	x.route.Ended(x, r)
	if x.File != nil {
		x.File.Close()
	}
	x.free()
}

// next waits for the next request and reads what has come of it, or closes the connection.
func (c *Conn) next(closes bool) {
	if closes || c.engine.hasEnded() {
		if c.more { // a socket that is closed with unread bytes resets the connection, and the client loses its answer
			_, _ = sock.Read(c.fd, c.engine.loop.Buffer())
		}
		c.close()
		return
	}
	c.since = c.engine.loop.Now()
	c.phase.Store(phaseWaiting)
	switch {
	case !c.more && c.handle != (loop.Handle{}):
	case c.reading:
		c.again = true
	default:
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

// tick applies the limits on time.
func (c *Conn) tick(now time.Time) {
	past := now.Sub(c.since)
	switch {
	case c.loading != nil:
	case c.sending:
		c.stalled(now, past)
	case c.exchange != nil && past < answerWait:
	case c.exchange != nil && c.upstream.connecting:
		c.redial()
	case c.exchange != nil:
		c.handOffRequest(&PendingUpstream{Received: bytes.Clone(c.exchange.partial)})
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

// stalled notes what the client has acknowledged, and resets the connection when that was nothing for Limits.Stall. It
// does not go by what the kernel takes, which may have room for more only long after the client has taken something.
func (c *Conn) stalled(now time.Time, past time.Duration) {
	if acked, err := sock.Acked(c.fd); err == nil && acked != c.acked {
		c.acked, c.since = acked, now
		c.owner.Progress()
		return
	}
	if c.limits.Stall > 0 && past >= c.limits.Stall {
		c.Refuse()
	}
}

// StopWaiting claims a connection that waits for its next request: it takes no further request, and the caller must
// close it. It returns false where the connection does not wait. Any goroutine may call it.
func (c *Conn) StopWaiting() bool { return c.phase.CompareAndSwap(phaseWaiting, phaseClosed) }

// StopSilent claims a connection on which no byte has come, as StopWaiting does.
func (c *Conn) StopSilent() bool { return c.phase.CompareAndSwap(phaseSilent, phaseClosed) }

// Close has the loop close the connection, unless that was handed off. Any goroutine may call it.
func (c *Conn) Close() {
	c.engine.Soon(func() {
		if !c.gone {
			c.close()
		}
	})
}

// Abort is Close by a reset, which frees the memory of the socket's buffers at once. Any goroutine may call it.
func (c *Conn) Abort() {
	c.engine.Soon(func() {
		if !c.gone {
			c.Refuse()
		}
	})
}

// Refuse closes the connection by a reset, in the loop's thread.
func (c *Conn) Refuse() {
	sock.ResetOnClose(c.fd)
	c.close()
}

// close closes the connection.
func (c *Conn) close() {
	x := c.exchange
	c.exchange = nil
	switch {
	case c.loading != nil: // the goroutine that loads the file finishes this one
		close(c.loading)
	case x == nil:
	case c.upstream != nil:
		c.upstream.close()
		c.upstream = nil
		c.finish(x, Result{Code: CodeGone, Gone: true})
	default:
		c.finish(x, x.result(unix.ECONNABORTED))
	}
	c.gone = true
	c.engine.remove(c)
	c.owner.Closed()
	c.engine.close(c.fd, c.handle)
	c.engine.open.Done()
}

// redial gives up the attempt to connect, and hands the request off: the owner connects again, or reports the failure.
func (c *Conn) redial() {
	if c.upstream != nil {
		c.upstream.close()
		c.upstream = nil
	}
	c.handOffRequest(nil)
}

// handOffRequest hands the connection off in the midst of a request. The endpoint's connection goes with it, if the
// request was written to one, in whole or in part. Without one a POST is handed off without an attempt: the owner goes
// on with attempts on kept connections, to which it sends no bodies.
func (c *Conn) handOffRequest(asked *PendingUpstream) {
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
	x.route.Cancel(x)
	c.release(x.request[:x.size], a)
	x.free()
}

// HandOff hands the connection off to its owner, in the loop's thread; no request may be under way.
func (c *Conn) HandOff() { c.release(nil, nil) }

func (c *Conn) release(early []byte, a *Attempt) {
	c.gone = true
	c.phase.Store(phaseBusy)
	c.engine.remove(c)
	c.engine.loop.Release(c.fd, c.handle)
	c.owner.HandOff(Handoff{FD: c.fd, Early: bytes.Clone(early), Attempt: a})
	c.engine.open.Done()
}
