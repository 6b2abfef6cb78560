package web

import (
	"bytes"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"sync"
	"time"

	"github.com/tinkerbell/stack/pkg/endpoint"
	"github.com/tinkerbell/stack/pkg/proxy/loop"
)

// A connection begins here, not in net/http's server: as long as its requests are plain (see [plainRequest]), come
// whole in one read, pass the route's gate beyond doubt, and nothing but a backend stands behind the route, one
// goroutine reads each, writes it to a kept connection, and writes the answer back: four system calls and no
// allocation. The first request that is anything else goes to net/http together with the connection, and with what was
// begun for it. So each rule about odd input stands in one place, and it is not here.
//
// Where the front has loops, a connection that goes on so is given to one, which takes the same steps: see [swift].

// plain is what serves plain requests; a generation has one where the socket is one route's, and its gate, if it has
// one, looks at nothing but the target.
type plain struct {
	*proxy
	observer *observer
	passes   func(target []byte) bool // the gate's; nil passes all
	swift    bool                     // a loop may serve it: see there
}

func plainWay(sites []*site) *plain {
	one := sites[0]
	s := one.settings
	if len(sites) > 1 || len(s.Hosts) > 0 || one.proxy == nil || s.GRPC || s.TLS != nil || s.Secure != nil ||
		s.Machines > 0 {
		return nil
	}
	var passes func([]byte) bool
	if s.Gate != nil {
		if passes = s.Gate.Passing(); passes == nil {
			return nil
		}
	}
	coarse := func(limit time.Duration) bool { return limit <= 0 || limit >= 2*loop.Tick }
	// A loop's clock would miss a time that is too short. Connections whose requests are all logged would only leave.
	// Nor does it wait for a share of the route's rate.
	swift := coarse(s.Dial) && coarse(s.Response) && s.AccessLog.every != 1 && s.Rate == 0
	return &plain{proxy: one.proxy, observer: one.observer, passes: passes, swift: swift}
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
	row     int       // how many requests in a row could have been a loop's
	last    bool      // the answer has said that the connection ends
	armed   time.Time // when the read deadline was last moved
	request plainRequest
	answer  plainAnswer
	who     claims // what is told of the client, where it asks for who.host
	out     []byte // what is written: a request, an answer's head
	in      [plainHead]byte
	size    int // how much of it is the request

	// Of the request that is being answered.
	way      *plain
	start    time.Time
	endpoint *endpoint.Endpoint
	taken    taken
	reply    []byte  // what has come of the answer in a loop; it waits for more
	written  int     // bytes of the answer that the loop has written
	hasty    bool    // is in a loop, which does not wait for a log
	line     *access // for the log, and not there yet
}

// taken is how far a loop has got with an endpoint.
type taken struct {
	upstream *upstream // nil if there is none, or no longer
	unsent   []byte    // of the request
	err      error     // why it ends there
	fresh    bool      // a kept connection is not tried again
	dialed   bool      // connecting began when the request did
}

// stage is how far a connection has got.
type stage int

// Stages. What is odd is net/http's; what is answered is still to be written, from express.written on; what is over is
// to be closed.
const (
	stageNext stage = iota
	stageOdd
	stageBegun
	stageAnswered
	stageOver
)

var expresses = sync.Pool{New: func() any { return new(express) }}

// expressFor begins with a connection.
func expressFor(c *conn, f *Front) *express {
	x := expresses.Get().(*express)
	x.conn, x.front, x.first, x.row, x.last, x.armed, x.who = c, f, true, 0, false, time.Time{}, claims{}
	x.client, x.reply, x.hasty = c.peer.Addr().WithZone(""), x.reply[:0], false
	return x
}

// free gives it back.
func (x *express) free() {
	x.conn, x.front, x.way, x.endpoint, x.taken = nil, nil, nil, nil, taken{}
	expresses.Put(x)
}

// express takes a connection; false where the route's requests are not for it.
func (f *Front) express(c *conn) bool {
	if f.current.Load().plain == nil {
		return false
	}
	c.worth = f.worth
	f.retired.Go(func() { expressFor(c, f).drive(stageNext) })
	return true
}

// drive serves the connection to its end, or until a loop has it, with net/http's server where that has to.
func (x *express) drive(at stage) {
	x.note()
	n, moved := x.run(at)
	if moved {
		x.free()
		return
	}
	c := x.conn
	c.early = bytes.Clone(x.in[:n])
	x.free()
	one := &single{conn: c}
	if len(c.early) > 0 {
		_ = c.server.Serve(one) // ends when it has taken the connection
	}
	if !one.taken {
		_ = c.Close()
	}
}

// run serves until the connection has ended, or its next request, of which it has read n bytes, is not plain, or a loop
// has it.
func (x *express) run(at stage) (n int, moved bool) {
	for ; ; at = stageNext {
		if at == stageNext {
			if x.front.swift(x) {
				return 0, true
			}
			if err := x.next(); err != nil {
				return 0, false
			}
			at = stageOdd
			if way := x.front.current.Load().plain; way != nil && x.begin(way, time.Now()) {
				at = stageBegun
			}
		}
		again, handed := false, false
		switch at {
		case stageBegun:
			again, handed = x.serve()
		case stageAnswered:
			again = x.rest()
		case stageOver:
		default:
			handed = true
		}
		if handed {
			return x.size, false
		}
		if !again {
			return 0, false
		}
		if x.row++; x.answer.length > swiftAnswer {
			x.row = 0
		}
	}
}

// next waits for a request.
func (x *express) next() (err error) {
	limit := x.server.ReadHeaderTimeout
	if !x.first {
		limit = x.server.idle
	}
	if now := time.Now(); limit > 0 && now.Sub(x.armed) > min(deadlineStep, limit/8) {
		if err := x.SetReadDeadline(now.Add(limit)); err != nil {
			return err
		}
		x.armed = now
	}
	if !x.first {
		x.phase.Store(phaseWaiting)
	}
	x.size, err = x.TCPConn.Read(x.in[:])
	if !x.phase.CompareAndSwap(phaseWaiting, phaseBusy) && !x.first {
		return net.ErrClosed
	}
	if x.first {
		x.first, x.armed = false, time.Time{}
		_ = x.SetReadDeadline(time.Time{})
	}
	if x.size > 0 {
		x.spoke.Store(true)
		return nil
	}
	return err
}

// begin takes up a request that has come; false where it is not plain, or nobody can be asked.
func (x *express) begin(way *plain, now time.Time) bool {
	if !x.request.parse(x.in[:x.size]) || trusts(way.settings.Trusted, x.client) {
		return false
	}
	if way.passes != nil && !way.passes(x.request.target) {
		return false
	}
	e, err := way.settings.Pool.Acquire(x.client)
	if err != nil {
		return false
	}
	x.way, x.start, x.endpoint = way, now, e
	x.shaping = shaping{way.settings.Shaper, x.client}
	x.lease.Touch()
	way.metrics.began()
	if string(x.request.host) != x.who.host || x.who.chain == "" {
		x.who = claims{proto: "http", host: string(x.request.host)}.of(x.client)
	}
	x.out = x.request.append(x.out[:0], x.who)
	return true
}

// serve answers the request. Handed is what net/http has to: nothing of an answer has been written then.
func (x *express) serve() (again, handed bool) {
	u, err := x.ask()
	if errors.Is(err, errGone) {
		x.gaveUp()
		return false, false
	}
	if err != nil || !x.plainAnswer(u) {
		x.way.metrics.handed()
		x.upstream.Store(nil)
		x.begun.Store(&attempt{start: x.start, endpoint: x.endpoint, upstream: u, err: err})
		return false, true
	}
	x.endpoint.Succeeded()
	sent, readErr, writeErr := x.pass(u)
	whole := readErr == nil && writeErr == nil
	if x.upstream.CompareAndSwap(u, nil) && whole && !x.answer.close && u.reader.Buffered() == 0 {
		x.way.direct.put(u)
	} else {
		_ = u.Close()
	}
	return x.done(sent, readErr, writeErr), false
}

// rest writes what a loop could not write of an answer.
func (x *express) rest() (again bool) {
	if _, err := x.Write(x.out[x.written:]); err != nil {
		return x.done(0, nil, err)
	}
	return x.done(x.answer.length, nil, nil)
}

// gaveUp is when the client has gone before its answer.
func (x *express) gaveUp() {
	x.endpoint.Release()
	x.way.metrics.failed(reasonGone)
	x.ended(499, 0, 0, reasonGone)
}

// done is when the answer has been passed on, or could not be.
func (x *express) done(sent int64, readErr, writeErr error) (again bool) {
	x.endpoint.Release()
	x.nextAnswer()
	reason := ""
	switch {
	case readErr != nil:
		reason = reasonTorn
	case writeErr != nil:
		reason = reasonGone
	}
	if reason != "" {
		x.way.metrics.failed(reason)
	}
	x.ended(x.answer.code, sent, x.answer.length, reason)
	return readErr == nil && writeErr == nil && !x.last
}

// ended counts, logs and tells of a request. Its answer was not whole where there is a reason.
func (x *express) ended(code int, bytes, expected int64, reason string) {
	took, torn := time.Since(x.start), reason == reasonTorn
	x.listener.metrics.bytesIn(x.size)
	x.way.metrics.ended(code, took)
	x.tellEnd(code, bytes, expected, took, reason)
	if !x.way.observer.logs(code, torn) {
		return
	}
	a := &access{
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
	x.line = a
	if !x.hasty {
		x.note()
	}
}

// note writes the line of the log.
func (x *express) note() {
	if x.line != nil {
		x.way.observer.record(x.line)
		x.line = nil
	}
}
