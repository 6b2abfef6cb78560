package http1

import (
	"errors"
	"io"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/pkg/proxy/sock"
)

const (
	// mostRequest is how long a plain request may be, mostHead the head of a plain answer, in bytes.
	mostRequest, mostHead = 4 << 10, 4 << 10
	// MostAnswer is how long an answer of an endpoint may be, head and body, in bytes.
	MostAnswer = 32 << 10
)

// exchanges are borrowed for a request's time.
var exchanges = sync.Pool{New: func() any { return new(Exchange) }}

func newExchange(c *Conn) *Exchange {
	x := exchanges.Get().(*Exchange)
	x.conn, x.Client, x.partial, x.written, x.loads = c, c.peer, x.partial[:0], 0, 0
	return x
}

// free returns the exchange to the pool.
func (x *Exchange) free() {
	x.conn, x.route, x.Endpoint, x.Added, x.File, x.broken = nil, nil, nil, nil, nil, nil
	exchanges.Put(x)
}

// begin parses the request and has the route start it; false if the engine does not serve it.
func (x *Exchange) begin(route Route, now time.Time) bool {
	if !x.Request.parse(x.request[:x.size]) {
		return false
	}
	x.route, x.Start = route, now
	if !route.Begin(x) {
		return false
	}
	if x.File == nil {
		x.out = x.Request.append(x.out[:0], x.Added)
	}
	return true
}

// judge reports whether b is a whole plain answer, or (wait) may become one.
func (x *Exchange) judge(b []byte) (whole, wait bool) {
	n := headEnd(b)
	if n == 0 {
		return false, len(b) < mostHead && !neverPlain(b)
	}
	if n > mostHead || !x.answer.parse(b[:n]) {
		return false, false
	}
	body := int64(len(b) - n)
	return body == x.answer.length, body < x.answer.length && x.answer.length <= int64(MostAnswer-n)
}

// answerFrom builds the client's copy of the answer that was read.
func (x *Exchange) answerFrom(read []byte) {
	x.out = append(x.answer.append(x.out[:0], x.Request.close), read[headEnd(read):]...)
	x.total = int64(len(x.out))
}

// answerFile builds the head of the answer that is a file.
func (x *Exchange) answerFile() {
	x.answer.code, x.answer.length = 200, x.File.Size()
	x.out = appendEnd(x.File.AppendHeader(append(x.out[:0], answerStart...)), false, x.Request.close)
	x.total = int64(len(x.out)) + x.answer.length
}

// errAbsent is that the next part of a file has left the memory.
var errAbsent = errors.New("the file's next part is not in memory")

// send gives a socket the next part of the answer. It tells how long that part is, and how much of it was taken.
func (x *Exchange) send(socket int) (part, n int64, err error) {
	head := int64(len(x.out))
	if x.written < head {
		rest, flags := x.out[x.written:], 0
		if x.total > head { // the file's first bytes follow in the same packet
			flags = unix.MSG_MORE
		}
		sent, err := sock.Send(socket, rest, flags)
		return int64(len(rest)), int64(sent), err
	}
	at := x.written - head
	if part, err = x.File.InMemory(at); err != nil {
		x.broken = err
		return 0, 0, err
	}
	if part = min(part, x.answer.length-at); part == 0 {
		return 0, 0, errAbsent
	}
	if n, err = x.File.Send(socket, at, part); errors.Is(err, io.ErrUnexpectedEOF) {
		x.broken = err
	}
	return part, n, err
}

// result describes the answer as far as the client's socket took it. With a failure, that is not all of it.
func (x *Exchange) result(failure error) Result {
	r := Result{
		Code: x.answer.code, Expected: x.answer.length, Sent: max(x.answer.length-(x.total-x.written), 0),
		Gone: failure != nil, Broken: x.broken,
	}
	if r.Broken != nil {
		r.Gone = false
	}
	return r
}
