package http1

import (
	"cmp"
	"errors"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/pkg/proxy/sock"
)

// How a request gets to an endpoint, and the head of its answer back.

// ask sends the request on an idle connection to the endpoint, or on a new one.
func (c *Conn) ask() state {
	x := c.exchange
	if c.upstream == nil {
		c.since = c.engine.loop.Now()
		if err := c.connect(); err != nil {
			if c.engine.hasEnded() {
				return c.close()
			}
			return c.failed(whileDialing, err)
		}
		if c.upstream.connecting {
			return connecting
		}
	}
	u := c.upstream
	for x.sent < len(x.out) {
		n, err := sock.Write(u.fd, x.out[x.sent:])
		x.sent += n
		if errors.Is(err, unix.EAGAIN) {
			if err = u.watchWrites(c.engine.loop, u); err == nil {
				return unsent
			}
		}
		if err != nil {
			return c.unanswered(os.NewSyscallError("write", err))
		}
	}
	c.since = c.engine.loop.Now()
	if u.more {
		return hearing
	}
	return asked
}

// connect takes an idle connection to the endpoint, or begins to open one.
func (c *Conn) connect() (err error) {
	x, pool := c.exchange, c.engine.poolOf(c.exchange.route.Upstreams())
	x.sent = 0
	if !x.newConn && (x.Request.safe() || pool.holdsIdle(x.Key)) {
		c.upstream = pool.take(x.Key)
	}
	if c.upstream == nil {
		if c.upstream, err = pool.open(x.Key); err != nil {
			return err
		}
	}
	c.upstream.conn = c
	return nil
}

// dialed goes on when a connection was opened, or could not be.
func (c *Conn) dialed() state {
	u := c.upstream
	pending, err := sock.Connect(u.fd, u.key.endpoint)
	switch {
	case pending:
		return connecting
	case err != nil:
		return c.failed(whileDialing, err)
	}
	u.connecting = false
	return asking
}

// hear reads the head of the answer.
func (c *Conn) hear() state {
	x, u := c.exchange, c.upstream
	for {
		buffer := c.engine.loop.Buffer()[:Piece]
		n, err := u.read(buffer)
		switch {
		case errors.Is(err, unix.EAGAIN):
			return asked
		case n == 0 && err != nil:
			return c.unanswered(os.NewSyscallError("read", err))
		case n == 0: // net/http says what is wrong with what has come
			return c.unanswered(cmp.Or(x.answer.read(x.in, x.Request.Method()), io.ErrUnexpectedEOF))
		}
		got := buffer[:n]
		if len(x.in) > 0 {
			x.in = append(x.in, got...)
			got = x.in
		}
		rest, whole, err := x.takeHead(got)
		switch {
		case err != nil:
			return c.unanswered(err)
		case whole:
			return c.beginAnswer(rest)
		}
		x.in = append(x.in[:0], rest...)
		if !u.more {
			return asked
		}
	}
}

// beginAnswer begins with the answer; rest is what has arrived of its body.
func (c *Conn) beginAnswer(rest []byte) state {
	x := c.exchange
	x.Endpoint.Succeeded()
	x.Request.close = x.Request.close || c.owner.Retired()
	x.beginBody()
	// Head and rest are copied into x.out: both may lie in the loop's buffer, which the next read overwrites.
	x.out, x.sent, x.begun = x.answer.append(x.out[:0], &x.Request), 0, true
	if x.answer.code/100 == 3 {
		x.location = x.answer.location()
	}
	if x.broken = x.takeFirst(rest); x.broken != nil {
		x.sent, _ = sock.Send(c.client.fd, x.out, 0)
		c.owner.Sent(x.sent)
		return c.end(x.broken)
	}
	if x.body.whole {
		c.keepOrClose()
		return passing
	}
	x.streamed = true
	x.piece = c.owner.Streaming(c.upstream.fd, c.client.fd, x.answer.length)
	x.route.Progressed(x, x.result(nil))
	return passing
}

// keepOrClose keeps the endpoint's connection for another request, or closes it. The answer has come to its end.
func (c *Conn) keepOrClose() {
	x, u := c.exchange, c.upstream
	c.upstream = nil
	keep := !x.answer.close && !x.body.surplus && !u.last && !u.more && u.pool.wants(u, x)
	if x.streamed { // what is left in x.out may take long to send: the owner must not use a closed descriptor meanwhile
		x.streamed = false
		c.owner.Streamed(keep)
	}
	if keep {
		u.pool.put(u)
	} else {
		u.socket.close(c.engine.loop)
	}
}

// hangUp closes the endpoint's connection, if there is one. It does not reset it: the endpoint may not have read all of
// the request yet.
func (c *Conn) hangUp() {
	if c.upstream != nil {
		c.upstream.socket.close(c.engine.loop)
		c.upstream = nil
	}
}

// unanswered goes on when the endpoint's connection failed before the answer had begun. A connection that was kept may
// have been closed by the endpoint meanwhile: then the request is sent on a new one, if it may be sent twice or was not
// received.
func (c *Conn) unanswered(err error) state {
	x, u := c.exchange, c.upstream
	if !u.used {
		return c.failed(whileAsking, err)
	}
	u.closedIdle()
	if !x.Request.safe() && !c.unreceived() {
		return c.failed(whileAsking, err)
	}
	c.hangUp()
	x.newConn, x.heads, x.in = true, 0, x.in[:0]
	return asking
}

// unreceived reports whether the endpoint has certainly received nothing of the request (RFC 9110, section 9.2.2):
// nothing was sent, or the endpoint had ended its side before anything came. Its FIN acknowledges what has come; a
// reset alone says nothing.
func (c *Conn) unreceived() bool {
	sent, fd := c.exchange.sent, c.upstream.fd
	return sent == 0 || sock.EndError(fd) == nil && sock.Outstanding(fd) == sent
}

// What an endpoint failed in.
const whileDialing, whileAsking = true, false

// failed asks another endpoint, or answers the client, when the endpoint has failed.
func (c *Conn) failed(dialing bool, err error) state {
	x := c.exchange
	c.hangUp()
	x.Endpoint = nil // Failed releases it
	refusal := x.route.Failed(x, dialing, cmp.Or(err, io.ErrUnexpectedEOF))
	if refusal == nil {
		x.newConn, x.heads, x.in = false, 0, x.in[:0]
		return asking
	}
	x.Request.close = x.Request.close || c.owner.Retired()
	x.answerRefusal(refusal)
	return passing
}
