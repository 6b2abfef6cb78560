package http1

import (
	"cmp"
	"errors"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/pkg/proxy/sock"
)

// How an answer gets to the client: out of x.out, and behind that out of a file, or as it comes from the endpoint. From
// the latter no more is read than the client takes.

const (
	// Piece is how much of an answer is read at a time, in bytes. More would not stay in the processor's L2 cache.
	Piece = 32 << 10
	// piecesAtOnce is how many pieces of one answer are passed on before the loop's other sockets have their turn.
	piecesAtOnce = 8
	// mostLoads is how often in a row a part of a file is loaded: it may have left the memory again before it is sent.
	mostLoads = 8
)

// pass passes the answer on until it is complete, or has to wait for the client or the endpoint.
func (c *Conn) pass() state {
	x := c.exchange
	for range piecesAtOnce {
		if s := c.flush(); s != goesOn {
			return s
		}
		var s state
		switch {
		case x.File != nil && x.payload < x.answer.length:
			s = c.passFile()
		case x.File != nil, x.body.whole:
			return c.end(x.broken) // its trailers may be broken
		default:
			s = c.receive()
		}
		if s != goesOn {
			return s
		}
	}
	return c.rest(passing)
}

// flush writes x.out to the client.
func (c *Conn) flush() state {
	x, flags := c.exchange, 0
	if x.File != nil && x.answer.length > 0 { // the file's first bytes follow in the same packet
		flags = unix.MSG_MORE
	}
	for x.sent < len(x.out) {
		n, err := sock.Send(c.client.fd, x.out[x.sent:], flags)
		c.owner.Sent(n)
		x.sent += n
		if err != nil {
			return c.unsendable(err)
		}
	}
	x.out, x.sent = x.out[:0], 0
	return goesOn
}

// unsendable waits for the client's socket, which takes no more, or ends the request.
func (c *Conn) unsendable(err error) state {
	if errors.Is(err, unix.EAGAIN) {
		c.since = c.engine.loop.Now()
		if err = c.client.watchWrites(c.engine.loop, c); err == nil {
			return blocked
		}
	}
	return c.end(err)
}

// receive reads a piece of the endpoint's answer and writes it.
func (c *Conn) receive() state {
	x, u, buffer := c.exchange, c.upstream, c.engine.loop.Buffer()
	if !u.more {
		return receiving
	}
	n, err := u.read(buffer[frameBefore:][:x.piece])
	switch {
	case errors.Is(err, unix.EAGAIN):
		return receiving
	case n == 0 && (err != nil || sock.EndError(u.fd) != nil || x.body.framing != byEnd):
		x.broken = cmp.Or(os.NewSyscallError("read", err), io.ErrUnexpectedEOF)
		return c.end(x.broken)
	}
	x.body.whole = n == 0 // the end of the connection is the body's
	data, broken := x.body.take(buffer[frameBefore:][:n])
	x.payload += int64(len(data))
	out := x.body.frame(buffer, frameBefore, len(data))
	if x.body.whole {
		c.keepOrClose()
		x.out, x.broken = x.body.appendEnd(append(x.out, out...))
		return goesOn
	}
	n, err = sock.Send(c.client.fd, out, 0)
	c.owner.Sent(n)
	x.out = append(x.out, out[n:]...)
	if x.answer.length < 0 { // now it may have become a long one
		x.route.Progressed(x, x.result(nil))
	}
	switch {
	case broken != nil:
		x.broken = broken
		return c.end(broken)
	case err != nil:
		return c.unsendable(err)
	}
	return goesOn
}

// passFile sends the next part of a file.
func (c *Conn) passFile() state {
	x := c.exchange
	there, err := x.File.InMemory(x.payload)
	there = min(there, x.answer.length-x.payload)
	if err == nil && there == 0 {
		if x.loads < mostLoads {
			return c.load()
		}
		err = errAbsent
	}
	if err != nil {
		x.broken = err
		return c.end(err)
	}
	n, err := x.File.Send(c.client.fd, x.payload, there)
	c.owner.Sent(int(n))
	x.payload += n
	if n > 0 {
		x.loads = 0
	}
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF):
		x.broken = err
		return c.end(err)
	case err != nil:
		return c.unsendable(err)
	}
	return goesOn
}

// errAbsent is that the next part of a file has left the memory.
var errAbsent = errors.New("the file's next part is not in memory")

// load has a goroutine load the next part of a file, which is not in memory. The connection goes on behind it.
func (c *Conn) load() state {
	x := c.exchange
	x.loads++
	stop := make(chan struct{})
	c.loading = stop
	c.engine.open.Go(func() {
		err := x.File.Load(x.payload, stop)
		done := make(chan struct{})
		c.engine.Soon(func() {
			defer close(done)
			c.loading, c.since = nil, c.engine.loop.Now() // it was not the client that was slow
			switch {
			case c.state == gone:
				c.finish(x, x.result(unix.ECONNABORTED))
			case err != nil:
				x.broken = err
				c.run(c.end(err))
			default:
				c.on(loaded)
			}
		})
		<-done
	})
	return loading
}
