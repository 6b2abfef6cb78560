package web

import (
	"bytes"
	"net/url"
	"sync"
	"time"

	"github.com/tinkerbell/stack/pkg/endpoint"
	"github.com/tinkerbell/stack/pkg/proxy/loop"
)

// plainRoute is what plain requests are served by. A generation has one where a loop may serve all that is plain: the
// socket is one route's, a backend answers, nothing stands in front of it but a gate that looks at nothing but the
// target, and nothing has to be waited for but sockets.
type plainRoute struct {
	*proxy
	observer *observer
	passes   func(target []byte) bool // the gate's; nil passes all
}

func plainRouteOf(sites []*site) *plainRoute {
	one := sites[0]
	s := one.settings
	if len(sites) > 1 || len(s.Hosts) > 0 || one.proxy == nil || s.GRPC || s.TLS != nil || s.Secure != nil ||
		s.Machines > 0 || s.Rate > 0 {
		return nil
	}
	// A loop's clock would miss a time that is too short. Where all requests are logged each has to wait for the log.
	coarse := func(limit time.Duration) bool { return limit <= 0 || limit >= 2*loop.Tick }
	if !coarse(s.Dial) || !coarse(s.Response) || s.AccessLog.every == 1 {
		return nil
	}
	var passes func([]byte) bool
	if s.Gate != nil {
		if passes = s.Gate.Passing(); passes == nil {
			return nil
		}
	}
	return &plainRoute{proxy: one.proxy, observer: one.observer, passes: passes}
}

// plainHead is how long a plain request may be, in bytes.
const plainHead = 4 << 10

// exchange is a plain request in a loop, with its answer. It is borrowed for the request's time.
type exchange struct {
	*loopConn
	route    *plainRoute
	start    time.Time
	endpoint *endpoint.Endpoint
	request  plainRequest
	answer   plainAnswer
	in       [plainHead]byte
	size     int    // how much of it is the request
	out      []byte // what is written: the request, then the answer
	written  int    // bytes of the answer
	reply    []byte // what has come of the answer; it waits for more
	line     *access
}

var exchanges = sync.Pool{New: func() any { return new(exchange) }}

func (s *loopConn) newExchange() *exchange {
	x := exchanges.Get().(*exchange)
	x.loopConn, x.reply, x.written = s, x.reply[:0], 0
	return x
}

// free gives it back.
func (x *exchange) free() {
	x.loopConn, x.route, x.endpoint, x.line = nil, nil, nil, nil
	exchanges.Put(x)
}

// begin takes up a request that has come; false where it is not plain, or nobody can be asked.
func (x *exchange) begin(route *plainRoute, now time.Time) bool {
	if !x.request.parse(x.in[:x.size]) || trusts(route.settings.Trusted, x.client) {
		return false
	}
	if route.passes != nil && (x.request.post || !route.passes(x.request.target)) {
		return false
	}
	e, err := route.settings.Pool.Acquire(x.client)
	if err != nil {
		return false
	}
	x.route, x.start, x.endpoint = route, now, e
	x.lease.Touch()
	route.metrics.began()
	if string(x.request.host) != x.forwarded.host || x.forwarded.chain == "" {
		x.forwarded = forwardedHeaders{proto: "http", host: string(x.request.host)}.onlyPeer(x.client)
	}
	x.out = x.request.append(x.out[:0], x.forwarded)
	return true
}

// gaveUp is when the client has gone before its answer.
func (x *exchange) gaveUp() {
	x.endpoint.Release()
	x.route.metrics.failed(reasonGone)
	x.ended(499, 0, 0, reasonGone)
}

// done is when the answer has been written, or could not be.
func (x *exchange) done(sent int64, err error) {
	x.endpoint.Release()
	reason := ""
	if err != nil {
		reason = reasonGone
		x.route.metrics.failed(reason)
	}
	x.ended(x.answer.code, sent, x.answer.length, reason)
}

// ended counts and tells of a request, and makes its line for the log. With a reason, its answer was not whole.
func (x *exchange) ended(code int, bytes, expected int64, reason string) {
	took := time.Since(x.start)
	x.listener.metrics.bytesIn(x.size)
	x.route.metrics.ended(code, took)
	x.tellEnd(code, bytes, expected, took, reason)
	if !x.route.observer.logs(code, false) {
		return
	}
	a := &access{
		method: x.request.method(), host: string(x.request.host), client: x.client, code: code, bytes: bytes,
		took: took,
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
}

// record writes a request's line to the log, which may have to be waited for: that holds up nothing but the request's
// connection, whose loop calls then behind it unless the connection has ended.
func (s *loopConn) record(x *exchange, then func()) {
	line, observer := x.line, x.route.observer
	x.free()
	s.loop.front.retired.Go(func() {
		observer.record(line)
		s.loop.soon(func() {
			s.logging = false
			if !s.gone {
				then()
			}
		})
	})
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
