package web

import (
	"bytes"
	"errors"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/pkg/proxy/admission"
	"github.com/tinkerbell/stack/pkg/proxy/loop"
	"github.com/tinkerbell/stack/pkg/proxy/sock"
)

// loopConn is a client's connection in an event loop, where no goroutine has to be woken for a request: for a small one
// that is half of the cost, and a goroutine of its own is more than half of a connection's. All connections begin here.
// The loop serves a plain request that comes whole, by an endpoint that takes it and answers soon, with an answer that
// is short and ends where it says. Everything else is net/http's: see handOff. So the loop decides nothing about bad
// input, or about which endpoint is to blame.
type loopConn struct {
	*conn
	loop      *frontLoop
	fd        int
	handle    loop.Handle
	place     int // among the loop's connections
	client    netip.Addr
	first     bool // no request has come yet
	last      bool // there may be an end behind what is read
	more      bool // something has come that has not been read
	sending   bool // the client has to take the rest of an answer
	endings   int  // how many bytes of line ends may still come behind a POST
	logging   bool // the line of the request before is being written
	gone      bool // from the loop
	since     time.Time
	acked     uint64           // bytes of answers that the client is known to have taken
	forwarded forwardedHeaders // what an endpoint is told of the client, where it asks for forwarded.host

	// Of the request that is being answered.
	exchange *exchange // nil between requests
	upstream *loopUpstream
}

const (
	// loopAnswer is how long an answer may be for a loop, head and body, in bytes.
	loopAnswer = 32 << 10
	// loopWait is how long an endpoint may take; then a goroutine may as well be woken for it.
	loopWait = loop.Tick
)

// Admit implements sock.Owner.
func (in *frontLoop) Admit(fd int, peer netip.AddrPort) {
	f := in.front
	s := &loopConn{loop: in, fd: fd, first: true, since: in.loop.Now(), client: peer.Addr().WithZone("")}
	if s.conn = f.listener.admit(s, peer); s.conn == nil {
		sock.ResetOnClose(fd)
		_ = unix.Close(fd)
		return
	}
	f.retired.Add(1) // until it leaves the loop
	in.add(s)
	c := s.conn
	cost := costOf(f.listener.settings.Load())
	if why := f.listener.room.Admit(&c.lease, c, peer.Addr(), cost); why != admission.Admitted {
		f.metrics.refused(why.String())
		sock.ResetOnClose(fd)
		s.end()
		return
	}
	if f.current.Load().plain == nil || c.header || c.server.secure {
		s.handOff(nil, nil)
		return
	}
	s.read() // most clients have sent their request by now
}

// wait waits for the next request.
func (s *loopConn) wait() {
	s.more = false
	if s.handle != (loop.Handle{}) {
		return
	}
	var err error
	if s.handle, err = s.loop.loop.Watch(s.fd, loop.Stream, s); err != nil {
		s.handOff(nil, nil)
	}
}

// Ready implements loop.Watcher.
func (s *loopConn) Ready(e loop.Events) {
	s.last = s.last || e.Last()
	switch {
	case s.sending && e.Writable():
		s.more = s.more || e.Readable()
		s.flush()
	case s.exchange != nil || s.logging:
		s.more = true
	case e.Readable():
		s.read()
	}
}

// read takes the next request.
func (s *loopConn) read() {
	x := s.newExchange()
	n, err := sock.Again(unix.Read, s.fd, x.in[:])
	if errors.Is(err, unix.EAGAIN) {
		x.free()
		s.wait()
		return
	}
	if n == 0 || !s.phase.CompareAndSwap(phaseWaiting, phaseBusy) && !s.first {
		x.free()
		s.end()
		return
	}
	s.more = s.last || n == len(x.in)
	if skipped := lineEnds(x.in[:min(n, s.endings)]); skipped > 0 {
		s.endings -= skipped
		s.listener.metrics.bytesIn(skipped)
		if n = copy(x.in[:], x.in[skipped:n]); n == 0 {
			x.free()
			s.phase.Store(phaseWaiting)
			if s.more || s.handle == (loop.Handle{}) {
				s.read()
			}
			return
		}
	}
	if s.first {
		s.first = false
		s.spoke.Store(true)
	}
	x.size = n
	route := s.loop.front.current.Load().plain
	if route == nil || !x.begin(route, s.loop.loop.Now()) {
		s.handOff(x.in[:n], nil)
		x.free()
		return
	}
	s.exchange, s.since, s.endings = x, x.start, 0
	if x.request.post {
		s.endings = mostLineEnds
	}
	pool, key := s.loop.poolOf(route.upstreams), route.upstreams.key(x.endpoint.Addr, s.client)
	if x.request.safe() { // else a connection that the endpoint has closed meanwhile would be the client's loss
		s.upstream = pool.take(key)
	}
	if s.upstream == nil {
		if s.upstream, err = pool.open(key); err != nil {
			s.redial()
			return
		}
	}
	if s.upstream.conn = s; !s.upstream.connecting {
		s.send()
	}
}

// mostLineEnds is how many bytes of line ends are skipped between a POST and the next request, as net/http's server
// does: there are clients that send an empty line behind the body.
const mostLineEnds = 4

// lineEnds is how many bytes of line ends something begins with.
func lineEnds(b []byte) int { return len(b) - len(bytes.TrimLeft(b, "\r\n")) }

// send writes the request; false if the connection has left the loop.
func (s *loopConn) send() bool {
	x := s.exchange
	n, err := sock.Again(unix.Write, s.upstream.fd, x.out)
	if n == len(x.out) {
		return true
	}
	if errors.Is(err, unix.EAGAIN) {
		err = nil
	}
	s.leave(progress{unsent: x.out[n:], failure: err})
	return false
}

// receive reads the answer, and passes it on once it is whole.
func (s *loopConn) receive() {
	x, room := s.exchange, s.loop.loop.Buffer()[:loopAnswer]
	have := copy(room, x.reply)
	for {
		n, err := sock.Again(unix.Read, s.upstream.fd, room[have:])
		if errors.Is(err, unix.EAGAIN) {
			break
		}
		have += n
		if n == 0 {
			s.leave(progress{early: room[:have], ended: true, failure: err})
			return
		}
		whole, wait := x.judge(room[:have])
		if whole {
			s.answer(room[headEnd(room[:have]):have])
			return
		}
		if !wait {
			s.leave(progress{early: room[:have]})
			return
		}
		if !s.upstream.last { // all that has come was read
			break
		}
	}
	x.reply = append(x.reply[:0], room[:have]...)
}

// judge reads what has come of an answer: it is plain and whole, or may become so.
func (x *exchange) judge(b []byte) (whole, wait bool) {
	n := headEnd(b)
	if n == 0 {
		return false, len(b) < readerSize && !odd(b)
	}
	if n > readerSize || !x.answer.parse(b[:n]) {
		return false, false
	}
	body := int64(len(b) - n)
	return body == x.answer.length, body < x.answer.length && x.answer.length <= int64(loopAnswer-n)
}

// answer writes the answer to the client.
func (s *loopConn) answer(body []byte) {
	x, u := s.exchange, s.upstream
	x.endpoint.Succeeded()
	if s.server.retired.Load() {
		x.request.close = true
	}
	x.out = append(x.answer.append(x.out[:0], x.request.close), body...)
	s.upstream = nil
	if x.answer.close || u.last {
		u.close()
	} else {
		u.pool.put(u)
	}
	s.flush()
}

// flush writes what the client takes of the answer, and goes on to the next request behind it.
func (s *loopConn) flush() {
	x := s.exchange
	n, err := sock.Again(unix.Write, s.fd, x.out[x.written:])
	s.listener.metrics.bytesOut(int64(n))
	x.written += n
	if x.written < len(x.out) && (err == nil || errors.Is(err, unix.EAGAIN)) {
		if err = s.waitToSend(); err == nil {
			return
		}
	}
	sent := x.answer.length
	if err != nil {
		sent = max(sent-int64(len(x.out)-x.written), 0)
	}
	s.sending = false
	x.done(sent, err)
	s.exchange = nil
	ends, line := err != nil || x.request.close, x.line
	if line != nil {
		s.logging = true
		s.record(x, func() { s.next(ends || s.loop.hasEnded()) })
		return
	}
	x.free()
	s.next(ends)
}

// next goes on to the next request, or ends the connection.
func (s *loopConn) next(ends bool) {
	if ends {
		s.end()
		return
	}
	s.since = s.loop.loop.Now()
	s.phase.Store(phaseWaiting)
	if s.more || s.handle == (loop.Handle{}) {
		s.read()
	}
}

// waitToSend waits until the client takes more of the answer.
func (s *loopConn) waitToSend() (err error) {
	if s.sending {
		return nil
	}
	s.sending, s.since = true, s.loop.loop.Now()
	s.loop.loop.Release(s.fd, s.handle)
	s.handle, err = s.loop.loop.Watch(s.fd, loop.Connecting, s)
	return err
}

// redial leaves it to a goroutine to connect: here it failed, or took long.
func (s *loopConn) redial() {
	if s.upstream != nil {
		s.upstream.close()
		s.upstream = nil
	}
	s.leave(progress{})
}

// tick looks whether the time is up.
func (s *loopConn) tick(now time.Time) {
	past := now.Sub(s.since)
	switch {
	case s.logging:
	case s.sending:
		s.stalled(now, past)
	case s.exchange != nil && past < loopWait:
	case s.exchange != nil && s.upstream.connecting:
		s.redial()
	case s.exchange != nil:
		s.leave(progress{early: s.exchange.reply})
	default:
		limit := s.server.ReadHeaderTimeout
		if !s.first {
			limit = s.server.idle
		}
		if limit > 0 && past >= limit {
			s.end()
		}
	}
}

// stalled ends the connection when the client has taken nothing of its answer for too long. What the kernel takes is no
// measure: see [conn.slow].
func (s *loopConn) stalled(now time.Time, past time.Duration) {
	info, err := unix.GetsockoptTCPInfo(s.fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	if err == nil && info.Bytes_acked != s.acked {
		s.acked, s.since = info.Bytes_acked, now
		s.lease.Touch()
		return
	}
	if s.stall.most > 0 && past >= s.stall.most {
		s.end()
	}
}

// close ends the connection for other goroutines than the loop's.
func (s *loopConn) close() {
	s.loop.soon(func() {
		if !s.gone {
			s.end()
		}
	})
}

// end closes the connection.
func (s *loopConn) end() {
	if x := s.exchange; x != nil {
		s.exchange = nil
		if s.upstream != nil {
			s.upstream.close()
			s.upstream = nil
		}
		if s.sending {
			x.done(max(x.answer.length-int64(len(x.out)-x.written), 0), unix.ECONNABORTED)
		} else {
			x.gaveUp()
		}
		if x.line != nil {
			s.record(x, func() {})
		} else {
			x.free()
		}
	}
	s.gone = true
	s.loop.remove(s)
	s.listener.remove(s.conn)
	s.closed.Store(true)
	s.loop.close(s.fd, s.handle)
	s.loop.front.retired.Done()
}
