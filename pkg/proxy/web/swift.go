package web

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/pkg/proxy/loop"
	"github.com/tinkerbell/stack/pkg/proxy/tcp"
)

// swift is a client's connection in a loop, where nobody has to be woken for a request: that is half of what a small
// one costs. The loop serves only the straight case: a plain request that comes whole, an endpoint that takes it and
// answers soon, an answer that is short and ends where it says, a client that takes it at once, nothing to be logged
// (a log may have to be waited for). With everything else the connection leaves the loop, at that very point, for a
// goroutine that goes on (see leave): a loop decides nothing about bad input, or about who is to blame.
type swift struct {
	*conn
	hub    *hub
	fd     int // another descriptor than conn's, which is closed
	handle loop.Handle
	place  int
	gone   bool // from the loop
	first  bool // no request has come yet
	last   bool // there may be an end behind what is read
	more   bool // something has come that has not been read
	since  time.Time
	who    claims // as in express, which is borrowed for each request

	// Of the request that is being answered.
	busy *express // nil between requests
	far  *far
}

const (
	// swiftAnswer is how long an answer may be for a loop, head and body, in bytes.
	swiftAnswer = 32 << 10
	// swiftWait is how long an endpoint may take; then it may as well cost waking a goroutine.
	swiftWait = loop.Tick
)

// What can fail of asking an endpoint.
const (
	opRead  = "read"
	opWrite = "write"
)

// enter begins in the loop.
func (s *swift) enter() {
	if s.gone { // who closes it was faster
		return
	}
	if s.since = s.hub.loop.Now(); !s.first {
		s.phase.Store(phaseWaiting)
	}
	var err error
	if s.handle, err = s.hub.loop.Watch(s.fd, loop.Stream, s); err != nil {
		s.leave(expressFor(s.conn, s.hub.front), stageNext, asked{})
		return
	}
	s.hub.add(s)
}

// Ready implements loop.Watcher.
func (s *swift) Ready(e loop.Events) {
	s.last = s.last || e.Last()
	if s.busy != nil {
		s.more = true
		return
	}
	s.read()
}

// read takes the next request.
func (s *swift) read() {
	x := expressFor(s.conn, s.hub.front)
	n, err := tcp.Again(unix.Read, s.fd, x.in[:])
	if errors.Is(err, unix.EAGAIN) {
		x.free()
		s.more = false
		return
	}
	if n == 0 || !s.phase.CompareAndSwap(phaseWaiting, phaseBusy) && !s.first {
		x.free()
		s.end()
		return
	}
	s.more = s.last || n == len(x.in)
	if s.first {
		s.first = false
		s.spoke.Store(true)
	}
	x.size, x.first, x.who, x.hasty = n, false, s.who, true
	way := s.hub.front.current.Load().plain
	if way == nil || !way.swift || !x.begin(way, s.hub.loop.Now()) {
		s.leave(x, stageOdd, asked{})
		return
	}
	s.who = x.who
	s.busy, s.since = x, x.start
	stock, key := s.hub.stockOf(way.direct), way.direct.key(x.endpoint.Addr, x.client)
	if s.far = stock.take(key); s.far == nil {
		if s.far, err = stock.open(key); err != nil {
			s.redial()
			return
		}
	}
	if s.far.swift = s; !s.far.connecting {
		s.send()
	}
}

// send writes the request; false if the connection has left the loop.
func (s *swift) send() bool {
	n, err := tcp.Again(unix.Write, s.far.fd, s.busy.out)
	if n == len(s.busy.out) {
		return true
	}
	if errors.Is(err, unix.EAGAIN) {
		err = nil
	}
	s.leave(s.busy, stageBegun, asked{unsent: s.busy.out[n:], op: opWrite, failure: err})
	return false
}

// receive reads the answer, and passes it on once it is whole.
func (s *swift) receive() {
	x, room := s.busy, s.hub.loop.Buffer()[:swiftAnswer]
	have := copy(room, x.reply)
	for {
		n, err := tcp.Again(unix.Read, s.far.fd, room[have:])
		if errors.Is(err, unix.EAGAIN) {
			break
		}
		have += n
		if n == 0 {
			s.leave(x, stageBegun, asked{early: room[:have], op: opRead, failure: err})
			return
		}
		whole, wait := x.judge(room[:have])
		if whole {
			s.answer(room[headEnd(room[:have]):have])
			return
		}
		if !wait {
			s.leave(x, stageBegun, asked{early: room[:have]})
			return
		}
		if !s.far.last { // all that has come was read
			break
		}
	}
	x.reply = append(x.reply[:0], room[:have]...)
}

// judge reads what has come of an answer: it is plain and whole, or may become so.
func (x *express) judge(b []byte) (whole, wait bool) {
	n := headEnd(b)
	if n == 0 {
		return false, len(b) < readerSize && !odd(b)
	}
	if n > readerSize || !x.answer.parse(b[:n]) {
		return false, false
	}
	body := int64(len(b) - n)
	return body == x.answer.length, body < x.answer.length && x.answer.length <= int64(swiftAnswer-n)
}

// answer writes the answer to the client, and goes on to the next request.
func (s *swift) answer(body []byte) {
	x, f := s.busy, s.far
	x.endpoint.Succeeded()
	x.last = x.request.close || x.server.retired.Load()
	x.out = append(x.answer.append(x.out[:0], x.last), body...)
	n, err := tcp.Again(unix.Write, s.fd, x.out)
	s.listener.metrics.bytesOut(int64(n))
	s.far = nil
	if x.answer.close || f.last {
		f.close()
	} else {
		f.stock.put(f)
	}
	if n < len(x.out) && (err == nil || errors.Is(err, unix.EAGAIN)) {
		x.written = n
		s.leave(x, stageAnswered, asked{})
		return
	}
	sent := int64(len(body))
	if err != nil {
		sent = 0
	}
	on := x.done(sent, nil, err)
	if x.line != nil {
		at := stageNext
		if !on {
			at = stageOver
		}
		s.leave(x, at, asked{})
		return
	}
	s.busy = nil
	x.free()
	if !on {
		s.end()
		return
	}
	s.since = s.hub.loop.Now()
	s.phase.Store(phaseWaiting)
	if s.more {
		s.read()
	}
}

// redial leaves it to a goroutine to connect: here it failed, or took long.
func (s *swift) redial() {
	if s.far != nil {
		s.far.close()
		s.far = nil
	}
	s.leave(s.busy, stageBegun, asked{})
}

// tick looks whether the time is up.
func (s *swift) tick(now time.Time) {
	past := now.Sub(s.since)
	switch {
	case s.busy != nil && past < swiftWait:
	case s.busy != nil && s.far.connecting:
		s.redial()
	case s.busy != nil:
		s.leave(s.busy, stageBegun, asked{early: s.busy.reply})
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

// close ends it for others than the loop.
func (s *swift) close() {
	s.hub.soon(func() {
		if !s.gone {
			s.end()
		}
	})
}

// end closes the connection.
func (s *swift) end() {
	if x := s.busy; x != nil {
		if s.far != nil {
			s.far.close()
			s.far = nil
		}
		x.gaveUp()
		if x.line != nil {
			s.leave(x, stageOver, asked{})
			return
		}
		x.free()
		s.busy = nil
	}
	s.gone = true
	if s.place >= 0 {
		s.hub.remove(s)
	}
	s.listener.remove(s.conn)
	s.closed.Store(true)
	s.hub.forget(s.fd, s.handle)
	s.hub.front.retired.Done()
}
