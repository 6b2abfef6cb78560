package http1

import (
	"errors"
	"net/http"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// mostRequest is how long a plain request may be, in bytes.
const mostRequest = 4 << 10

// exchanges are borrowed for a request's time.
var exchanges = sync.Pool{New: func() any { return new(Exchange) }}

func newExchange(c *Conn) *Exchange {
	x := exchanges.Get().(*Exchange)
	x.conn, x.Client = c, c.peer
	return x
}

// free returns the exchange to the pool, unless its space has grown large.
func (x *Exchange) free() {
	if cap(x.in)+cap(x.out) > 3*Piece {
		return
	}
	x.conn, x.route, x.Endpoint, x.Added, x.File, x.broken = nil, nil, nil, nil, nil, nil
	x.answer = answer{lines: x.answer.lines[:0]}
	x.body = body{line: x.body.line[:0]}
	x.in, x.out, x.heads, x.sent, x.payload, x.loads = x.in[:0], x.out[:0], 0, 0, 0, 0
	x.newConn, x.begun, x.streamed, x.stalled, x.location = false, false, false, false, ""
	exchanges.Put(x)
}

// parse parses the request and has the route start it; false if the engine does not serve it.
func (x *Exchange) parse(route Route, now time.Time) bool {
	if !x.Request.parse(x.raw[:x.size]) {
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

// beginBody prepares to read the body of the answer whose head was read.
func (x *Exchange) beginBody() {
	a, y := &x.answer, &x.body
	*y = body{framing: byLength, left: a.length, line: y.line[:0], whole: a.length == 0}
	switch {
	case a.chunked:
		y.framing = byChunks
	case a.length < 0:
		y.framing = byEnd
	}
	y.toChunks = a.length < 0 && !x.Request.Old
	x.Request.close = x.Request.close || a.length < 0 && x.Request.Old
}

// takeFirst takes what has arrived of the body with the head.
func (x *Exchange) takeFirst(b []byte) (err error) {
	if len(b) == 0 {
		return nil
	}
	if x.body.whole {
		x.body.surplus = true
		return nil
	}
	data, err := x.body.take(b)
	x.payload += int64(len(data))
	if x.body.toChunks && len(data) > 0 {
		x.out = append(strconv.AppendUint(x.out, uint64(len(data)), 16), crlf...)
		x.out = append(append(x.out, data...), crlf...)
	} else {
		x.out = append(x.out, data...)
	}
	if x.body.whole && err == nil {
		x.out, err = x.body.appendEnd(x.out)
	}
	return err
}

// answerFile builds the head of the answer that is a file.
func (x *Exchange) answerFile() {
	x.answer.code, x.answer.length, x.begun = http.StatusOK, x.File.Size(), true
	x.answer.expected = x.answer.length
	x.out = x.Request.appendEnd(x.File.AppendHeader(x.Request.answerStart(x.out[:0])), false)
}

// answerRefusal builds an answer of the proxy's own.
func (x *Exchange) answerRefusal(r *Refusal) {
	x.begun, x.payload, x.sent = true, int64(len(r.Text)), 0
	x.answer.code, x.answer.length, x.answer.expected, x.body.whole = r.Code, x.payload, 0, true
	b := strconv.AppendInt(x.Request.answerStart(x.out[:0]), int64(r.Code), 10)
	b = append(append(append(b, ' '), http.StatusText(r.Code)...), crlf...)
	b = append(append(b, r.Lines...), "Content-Length: "...)
	b = append(strconv.AppendInt(b, x.payload, 10), crlf...)
	x.out = append(x.Request.appendEnd(b, false), r.Text...)
}

// result describes the answer as far as the client's socket took it: less than all of it after a failure.
func (x *Exchange) result(failure error) Result {
	return Result{
		Code: x.answer.code, Expected: x.answer.expected, Sent: max(x.payload-int64(len(x.out)-x.sent), 0),
		Gone: failure != nil && x.broken == nil, Broken: x.broken,
		Stalled:  x.stalled || errors.Is(failure, unix.ETIMEDOUT), // TCP_USER_TIMEOUT may be sooner than we are
		Location: x.location,
	}
}
