package web

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// A connection begins here, not in net/http's server: as long as its requests are plain (see [plainRequest]), come
// whole in one read, and nothing but a backend stands behind the route, one goroutine reads each, writes it to a kept
// connection, and writes the answer back: four system calls and no allocation. The first request that is anything
// else goes to net/http together with the connection, and with what was begun for it. So each rule about odd input
// stands in one place, and it is not here.

// plain is what serves plain requests; a generation has one where the socket is one route's without a gate.
type plain struct {
	*proxy
	observer *observer
}

func plainWay(sites []*site) *plain {
	one := sites[0]
	s := one.settings
	if len(sites) > 1 || len(s.Hosts) > 0 || one.proxy == nil || s.Gate != nil || s.GRPC || s.TLS != nil ||
		s.Secure != nil {
		return nil
	}
	return &plain{proxy: one.proxy, observer: one.observer}
}

const (
	// plainHead is how long a plain head may be, in bytes.
	plainHead = 4 << 10
	// tick is how often a wait for an endpoint looks whether the client is still there.
	tick = time.Second
)

var errGone = errors.New("the client has gone")

// express is a connection whose requests have all been plain.
type express struct {
	*conn
	front   *Front
	client  netip.Addr
	first   bool      // no request has come yet
	last    bool      // the answer has said that the connection ends
	armed   time.Time // when the read deadline was last moved
	request plainRequest
	answer  plainAnswer
	who     claims // what is told of the client, where it asks for who.host
	out     []byte // what is written: a request, an answer's head
	in      [plainHead]byte
}

var expresses = sync.Pool{New: func() any { return new(express) }}

// express takes a connection; false where the route's requests are not for it.
func (f *Front) express(c *conn) bool {
	if f.current.Load().plain == nil {
		return false
	}
	f.retired.Go(func() {
		x := expresses.Get().(*express)
		x.conn, x.front, x.first, x.last, x.armed, x.who = c, f, true, false, time.Time{}, claims{}
		x.client = c.peer.Addr().WithZone("")
		c.early = bytes.Clone(x.in[:x.run()])
		x.conn, x.front = nil, nil
		expresses.Put(x)
		one := &single{conn: c}
		if len(c.early) > 0 {
			_ = c.server.Serve(one) // ends when it has taken the connection
		}
		if !one.taken {
			_ = c.Close()
		}
	})
	return true
}

// run serves until the connection has ended, or its next request, of which it has read n bytes, is not plain.
func (x *express) run() (n int) {
	for {
		n, err := x.next()
		if err != nil {
			return 0
		}
		way := x.front.current.Load().plain
		if way == nil || !x.request.parse(x.in[:n]) || trusts(way.settings.Trusted, x.client) {
			return n
		}
		again, handed := x.serve(way)
		if handed {
			return n
		}
		x.listener.metrics.bytesIn(n)
		if !again {
			return 0
		}
	}
}

// next waits for a request.
func (x *express) next() (n int, err error) {
	limit := x.server.ReadHeaderTimeout
	if !x.first {
		limit = x.server.IdleTimeout
	}
	if now := time.Now(); limit > 0 && now.Sub(x.armed) > min(deadlineStep, limit/8) {
		if err := x.SetReadDeadline(now.Add(limit)); err != nil {
			return 0, err
		}
		x.armed = now
	}
	if !x.first {
		x.phase.Store(phaseWaiting)
	}
	n, err = x.TCPConn.Read(x.in[:])
	if !x.phase.CompareAndSwap(phaseWaiting, phaseBusy) && !x.first {
		return 0, net.ErrClosed
	}
	if x.first {
		x.first, x.armed = false, time.Time{}
		_ = x.SetReadDeadline(time.Time{})
	}
	if n > 0 {
		x.spoke.Store(true)
		return n, nil
	}
	return 0, err
}

// serve answers the request. Handed is what net/http has to: nothing of an answer has been written then.
func (x *express) serve(way *plain) (again, handed bool) {
	start := time.Now()
	e, err := way.settings.Pool.Acquire(x.client)
	if err != nil {
		return false, true
	}
	way.metrics.began()
	u, err := x.ask(way, e.Addr, start)
	if errors.Is(err, errGone) {
		e.Release()
		way.metrics.failed("client_gone")
		x.ended(way, start, 499, 0, false)
		return false, false
	}
	if err != nil || !x.plainAnswer(u) {
		way.metrics.handed()
		x.upstream.Store(nil)
		x.begun.Store(&attempt{start: start, endpoint: e, upstream: u, err: err})
		return false, true
	}
	e.Succeeded()
	sent, readErr, writeErr := x.pass(u)
	e.Release()
	whole := readErr == nil && writeErr == nil
	if x.upstream.CompareAndSwap(u, nil) && whole && !x.answer.close && u.reader.Buffered() == 0 {
		way.direct.put(u)
	} else {
		_ = u.Close()
	}
	switch {
	case readErr != nil:
		way.metrics.failed("torn")
	case writeErr != nil:
		way.metrics.failed("client_gone")
	}
	x.ended(way, start, x.answer.code, sent, readErr != nil)
	return whole && !x.last, false
}

// ended counts and logs a request.
func (x *express) ended(way *plain, start time.Time, code int, bytes int64, torn bool) {
	took := time.Since(start)
	way.metrics.ended(code, took)
	if !way.observer.logs(code, torn) {
		return
	}
	a := access{
		method: http.MethodGet, host: string(x.request.host), client: x.client, code: code, bytes: bytes,
		took: took, torn: torn,
	}
	if target, err := url.ParseRequestURI(string(x.request.target)); err == nil {
		a.path = target.Path
	}
	for _, l := range x.request.lines {
		if equalFold(l.name, "user-agent") {
			a.agent = string(l.value)
			break
		}
	}
	way.observer.record(&a)
}

// ask sends the request and waits for the answer's head. As in askDirect, a kept connection may turn out to be dead.
func (x *express) ask(way *plain, addr netip.AddrPort, start time.Time) (*upstream, error) {
	if string(x.request.host) != x.who.host || x.who.chain == "" {
		x.who = claims{proto: "http", host: string(x.request.host)}.of(x.client)
	}
	x.out = x.request.append(x.out[:0], x.who)
	for fresh := false; ; fresh = true {
		u, err := x.reach(way.direct, addr, fresh)
		if err == nil {
			err = x.exchange(u, start, way.direct.response)
		}
		if err == nil {
			return u, nil
		}
		if u != nil {
			_ = u.Close()
		}
		if x.closed.Load() { // by the end of a drain, and the connection to the endpoint with it
			return nil, errGone
		}
		var timeout net.Error
		if u == nil || !u.used || errors.Is(err, errGone) || errors.As(err, &timeout) && timeout.Timeout() {
			return nil, err
		}
	}
}

// reach takes a kept connection or opens one, and has it closed with the client's.
func (x *express) reach(d *direct, addr netip.AddrPort, fresh bool) (u *upstream, err error) {
	if !fresh {
		u = d.take(addr)
	}
	if u == nil {
		ctx, cancel := context.WithCancel(context.Background())
		defer func() {
			cancel()
			x.dialing.Store(nil)
		}()
		if x.dialing.Store(&cancel); x.closed.Load() {
			return nil, errGone
		}
		if u, err = d.open(ctx, addr); err != nil {
			return nil, err
		}
	}
	if x.upstream.Store(u); x.closed.Load() {
		return u, errGone
	}
	return u, nil
}

// exchange writes the request and waits until the answer's head is in the reader's buffer, or does not fit, or is odd.
func (x *express) exchange(u *upstream, start time.Time, limit time.Duration) error {
	step := tick
	if limit > 0 {
		step = min(step, limit)
	}
	if left := u.until.Sub(start); left < step/2 || left > step {
		if err := u.waitUntil(start.Add(step)); err != nil {
			return err
		}
	}
	if _, err := u.Write(x.out); err != nil {
		return err
	}
	for want := 1; ; want = u.reader.Buffered() + 1 {
		_, err := u.reader.Peek(want)
		switch {
		case errors.Is(err, bufio.ErrBufferFull), headEnd(u.reader) > 0, odd(u.reader):
			return nil
		case err == nil:
		case limit > 0 && time.Since(start) >= limit:
			return err
		default:
			if err := x.stay(u, err, step); err != nil {
				return err
			}
		}
	}
}

// headEnd is the length of the head in a reader's buffer, 0 where its end is not there.
func headEnd(r *bufio.Reader) int {
	b, _ := r.Peek(r.Buffered())
	if at := bytes.Index(b, []byte("\r\n\r\n")); at >= 0 {
		return at + 4
	}
	return 0
}

// odd is whether what has come of a head cannot become a plain one's. It may be whole to net/http, or never be.
func odd(r *bufio.Reader) bool {
	b, _ := r.Peek(r.Buffered())
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
	n := headEnd(u.reader)
	head, _ := u.reader.Peek(n)
	return n > 0 && x.answer.parse(head)
}

// pass writes the answer to the client.
func (x *express) pass(u *upstream) (sent int64, readErr, writeErr error) {
	x.last = x.server.retired.Load()
	x.out = x.answer.append(x.out[:0], x.last)
	_, _ = u.reader.Discard(headEnd(u.reader)) // it is in the buffer
	body, _ := u.reader.Peek(int(min(x.answer.length, int64(u.reader.Buffered()))))
	x.out = append(x.out, body...)
	_, _ = u.reader.Discard(len(body))
	if _, err := x.Write(x.out); err != nil {
		return 0, nil, err
	}
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
