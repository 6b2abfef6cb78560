package web

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// How a plain request is asked of an endpoint by a goroutine, and the answer passed on.

// ask sends the request and waits for the answer's head. As in askDirect, a kept connection may turn out to be dead.
func (x *express) ask() (*upstream, error) {
	d, begun := x.way.direct, x.taken
	x.taken = taken{}
	for fresh := begun.fresh; ; fresh = true {
		u, unsent, err := begun.upstream, begun.unsent, begun.err
		switch {
		case u != nil && err == nil:
			err = x.hold(u)
		case u == nil && err == nil:
			unsent = x.out
			u, err = x.reach(d, fresh, begun.dialed)
		}
		begun = taken{}
		if err == nil {
			err = x.exchange(u, unsent, d.response)
		}
		if err == nil {
			return u, nil
		}
		if u != nil {
			_ = u.Close()
		}
		if x.lost() { // by the end of a drain, and the connection to the endpoint with it
			return nil, errGone
		}
		var timeout net.Error
		if u == nil || !u.used || errors.Is(err, errGone) || errors.As(err, &timeout) && timeout.Timeout() {
			return nil, err
		}
	}
}

// reach takes a kept connection or opens one, and has it closed with the client's.
func (x *express) reach(d *direct, fresh, dialed bool) (u *upstream, err error) {
	key := d.key(x.endpoint.Addr, x.client)
	if !fresh {
		u = d.take(key)
	}
	if u == nil {
		limit := time.Time{}
		if dialed && d.limit > 0 {
			limit = x.start.Add(d.limit)
		}
		ctx, cancel := withDeadline(limit)
		defer func() {
			cancel()
			x.dialing.Store(nil)
		}()
		if x.dialing.Store(&cancel); x.lost() {
			return nil, errGone
		}
		if u, err = d.open(ctx, key); err != nil {
			return nil, err
		}
	}
	return u, x.hold(u)
}

// withDeadline is a context that ends then; zero is never.
func withDeadline(at time.Time) (context.Context, context.CancelFunc) {
	if at.IsZero() {
		return context.WithCancel(context.Background())
	}
	return context.WithDeadline(context.Background(), at)
}

// hold has a connection to an endpoint closed with the client's.
func (x *express) hold(u *upstream) error {
	if x.upstream.Store(u); x.lost() {
		return errGone
	}
	return nil
}

// exchange writes the request, or what is left of it, and waits until the answer's head is in the reader's buffer, or
// does not fit, or is odd.
func (x *express) exchange(u *upstream, unsent []byte, limit time.Duration) error {
	step := tick
	if limit > 0 {
		step = min(step, limit)
	}
	if left := u.until.Sub(x.start); left < step/2 || left > step {
		if err := u.waitUntil(x.start.Add(step)); err != nil {
			return err
		}
	}
	if len(unsent) > 0 {
		if _, err := u.Write(unsent); err != nil {
			return err
		}
	}
	for want := 1; ; want = u.reader.Buffered() + 1 {
		_, err := u.reader.Peek(want)
		head, _ := u.reader.Peek(u.reader.Buffered())
		switch {
		case errors.Is(err, bufio.ErrBufferFull), headEnd(head) > 0, odd(head):
			return nil
		case err == nil:
		case limit > 0 && time.Since(x.start) >= limit:
			return err
		default:
			if err := x.stay(u, err, step); err != nil {
				return err
			}
		}
	}
}

// headEnd is the length of the head in what has come of an answer, 0 where its end is not there.
func headEnd(b []byte) int {
	if at := bytes.Index(b, []byte("\r\n\r\n")); at >= 0 {
		return at + 4
	}
	return 0
}

// odd is whether what has come of a head cannot become a plain one's. It may be whole to net/http, or never be.
func odd(b []byte) bool {
	if n := min(len(b), len(answerStart)); string(b[:n]) != answerStart[:n] {
		return true
	}
	for at := range b {
		if b[at] == '\n' && b[at-1] != '\r' { // it does not start with one
			return true
		}
	}
	return false
}

// stay decides whether to wait on after a failed read: if it was a tick's end, and the client is there.
func (x *express) stay(u *upstream, err error, step time.Duration) error {
	switch {
	case !errors.Is(err, os.ErrDeadlineExceeded):
		return err
	case x.gone():
		return errGone
	}
	return u.waitUntil(time.Now().Add(step))
}

// gone looks whether the client has closed, without taking what it may have sent.
func (c *conn) gone() bool {
	raw, err := c.SyscallConn()
	if err != nil {
		return true
	}
	n, err := lookAt(raw)()
	return err == nil && n == 0 || err != nil && !errors.Is(err, unix.EAGAIN)
}

// plainAnswer reads the answer's head. One that is not plain is left in the reader.
func (x *express) plainAnswer(u *upstream) bool {
	head, _ := u.reader.Peek(u.reader.Buffered())
	n := headEnd(head)
	return n > 0 && x.answer.parse(head[:n])
}

// pass writes the answer to the client.
func (x *express) pass(u *upstream) (sent int64, readErr, writeErr error) {
	x.last = x.request.close || x.server.retired.Load()
	x.out = x.answer.append(x.out[:0], x.last)
	head, _ := u.reader.Peek(u.reader.Buffered())
	_, _ = u.reader.Discard(headEnd(head)) // it is in the buffer
	body, _ := u.reader.Peek(int(min(x.answer.length, int64(u.reader.Buffered()))))
	x.out = append(x.out, body...)
	_, _ = u.reader.Discard(len(body))
	if _, err := x.Write(x.out); err != nil {
		return 0, nil, err
	}
	x.tellBegin()
	sent = int64(len(body))
	if sent == x.answer.length {
		return sent, nil, nil
	}
	buffer := bufferPool.Get().(*[32 << 10]byte)
	defer bufferPool.Put(buffer)
	for sent < x.answer.length {
		n, err := u.reader.Read(buffer[:min(x.answer.length-sent, int64(len(buffer)))])
		if n > 0 {
			if _, err := x.Write(buffer[:n]); err != nil {
				return sent, nil, err
			}
			sent += int64(n)
		}
		if errors.Is(err, io.EOF) {
			return sent, io.ErrUnexpectedEOF, nil
		}
		if err != nil {
			if err = x.stay(u, err, tick); errors.Is(err, errGone) {
				return sent, nil, err
			}
			if err != nil {
				return sent, err, nil
			}
		}
	}
	return sent, nil, nil
}
