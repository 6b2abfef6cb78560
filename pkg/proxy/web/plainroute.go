package web

import (
	"errors"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/tinkerbell/stack/pkg/endpoint"
	"github.com/tinkerbell/stack/pkg/proxy/http1"
	"github.com/tinkerbell/stack/pkg/proxy/loop"
	"github.com/tinkerbell/stack/pkg/proxy/sock"
	"github.com/tinkerbell/stack/pkg/record"
)

// plain is the route that serves plain requests in the engine; nil where all requests are net/http's.
func (f *Front) plain() *plainRoute { return f.current.Load().plain }

// CachedFile is a file that is in the operating system's memory.
type CachedFile interface {
	http1.File
	// Served counts how much of it was sent, and in which time, and tells of an error of reading it.
	Served(bytes int64, took time.Duration, failure error)
}

// CachedFiles may be implemented by a [Settings].Handler; package proxy has package artifacts implement it.
type CachedFiles interface {
	// Cached is the file that a GET of a path is answered with, whole; nil where that is not known without waiting, or
	// where the answer depends on more than the path.
	Cached(path string) CachedFile
}

// plainRoute serves plain requests in the engine. A generation has one if its socket is one route's for any host,
// without gRPC, a rate, or TLS on either side; a backend or files answer; and its gate, if any, looks at the target
// alone.
type plainRoute struct {
	*site
	passes func(target []byte) bool // the gate's; nil passes all
	files  CachedFiles              // nil where a backend answers
}

func plainRouteOf(sites []*site) *plainRoute {
	p := &plainRoute{site: sites[0]}
	s := p.settings
	if s.Handler != nil {
		p.files, _ = s.Handler.(CachedFiles)
	}
	if len(sites) > 1 || len(s.Hosts) > 0 || p.proxy == nil && p.files == nil || s.GRPC || s.TLS != nil ||
		s.Secure != nil || s.Rate > 0 {
		return nil
	}
	// A loop's clock would miss a time that is too short.
	coarse := func(limit time.Duration) bool { return limit <= 0 || limit >= 2*loop.Tick }
	if !coarse(s.Dial) || !coarse(s.Response) {
		return nil
	}
	if s.Gate != nil {
		if p.passes = s.Gate.PassesTarget(); p.passes == nil {
			return nil
		}
	}
	return p
}

// Upstreams implements http1.Route.
func (p *plainRoute) Upstreams() *http1.Upstreams { return p.proxy.transport.idle }

// Begin implements http1.Route.
func (p *plainRoute) Begin(x *http1.Exchange) bool {
	if p.passes != nil && (x.Request.Post || !p.passes(x.Request.Target)) {
		return false
	}
	if trusts(p.settings.Trusted, x.Client) { // its headers about its client are net/http's to read
		return false
	}
	c := connOf(x)
	c.request = plainRequest{}
	if p.files != nil {
		return p.beginFile(x)
	}
	c.request.attempts = p.settings.Pool.Attempts(x.Client, mostAttempts)
	if !p.nextEndpoint(x) {
		return false // net/http's server looks once more, and tells the client
	}
	c.charge.Touch()
	p.observer.metrics.began()
	if f := &c.forwarded; string(x.Request.Host) != f.host || x.Request.Old != f.old || f.lines == nil {
		f.host, f.old = string(x.Request.Host), x.Request.Old
		via := viaHTTP11
		if f.old {
			via = viaHTTP10
		}
		lines := forwardedHeaders{proto: "http", host: f.host}.onlyPeer(x.Client).append(nil)
		f.lines = appendHeader(lines, "Via", via)
	}
	x.Added, x.Dial, x.Response = c.forwarded.lines, orNone(p.settings.Dial), orNone(p.settings.Response)
	return true
}

// nextEndpoint gives the request to an endpoint that has not been tried for it; false where there is none.
func (p *plainRoute) nextEndpoint(x *http1.Exchange) bool {
	c := connOf(x)
	e, err := c.request.attempts.Next()
	if err != nil {
		c.request.failure = err
		return false
	}
	c.request.to, x.Endpoint, x.Key = e.Addr, e, http1.PerClient(e.Addr, x.Client)
	return true
}

// beginFile answers a request with a file, unless its header asks for more than that.
func (p *plainRoute) beginFile(x *http1.Exchange) bool {
	if x.Request.Post {
		return false
	}
	for _, l := range x.Request.Lines {
		if l.Is("range") || len(l.Name) > 3 && (l.Name[0]|0x20) == 'i' && (l.Name[1]|0x20) == 'f' && l.Name[2] == '-' {
			return false
		}
	}
	file := p.files.Cached(string(plainPath(x.Request.Target)))
	if file == nil {
		return false
	}
	connOf(x).charge.Touch()
	p.observer.metrics.began()
	x.File = file
	p.Progressed(x, http1.Result{Code: http.StatusOK, Expected: file.Size()})
	return true
}

func connOf(x *http1.Exchange) *loopConn { return x.Conn().Owner().(*loopConn) }

// Failed implements http1.Route.
func (p *plainRoute) Failed(x *http1.Exchange, dialing bool, err error) *http1.Refusal {
	c, operation, how := connOf(x), "read", endpoint.Failed
	if dialing {
		operation, how = "dial", endpoint.Unseen // another endpoint may be tried
	}
	if sock.NoLocalPort(err) {
		how = endpoint.Unreached
	} else if sock.Exhausted(err) {
		how = endpoint.NotItsFault
	}
	if how != endpoint.NotItsFault {
		p.proxy.transport.idle.Drop(c.request.to) // each may be broken, or has a local port
	}
	// As package net has it:
	if dialing || errors.As(err, new(*os.SyscallError)) || errors.Is(err, os.ErrDeadlineExceeded) {
		err = &net.OpError{Op: operation, Net: "tcp", Addr: net.TCPAddrFromAddrPort(c.request.to), Err: err}
	}
	c.request.attempts.Done(how, err) // only after Unseen does Next have another one
	if p.nextEndpoint(x) {
		p.observer.metrics.retried()
		return nil
	}
	c.request.reason = failureOf(c.request.failure)
	p.observer.metrics.failed(c.request.reason)
	code, lines := failures[c.request.reason].code, ""
	if code == http.StatusServiceUnavailable {
		lines = "Retry-After: 2\r\n"
	}
	return refusal(code, lines, p.proxy.sayFailure(c.request.reason))
}

// refusal is an answer of our own, with the header lines that package reply would send.
func refusal(code int, lines, text string) *http1.Refusal {
	return &http1.Refusal{
		Code: code, Text: text + "\n",
		Lines: lines + "Cache-Control: no-store\r\nContent-Type: text/plain; charset=utf-8\r\n" +
			"X-Content-Type-Options: nosniff\r\n",
	}
}

// Progressed implements http1.Route: it records that a request waits for its endpoint, that a long answer has begun,
// and from time to time how far it has got.
func (p *plainRoute) Progressed(x *http1.Exchange, r http1.Result) {
	c, sink := connOf(x), p.observer.sink
	long := max(r.Sent, r.Expected) >= record.LongAnswer
	if sink == nil || r.Code != 0 && !long {
		return
	}
	took := time.Since(x.Start)
	switch c.request.announced.next(r.Code, long, took) {
	case noNotice:
		return
	case answerBegins:
		took, r.Sent = 0, 0
	}
	began := p.observer.recordOf(x, http1.Result{Code: r.Code, Sent: r.Sent, Expected: r.Expected}, took)
	began.Outcome, began.Reason = record.Began, ""
	sink.Record(began)
}

// Ended implements http1.Route.
func (p *plainRoute) Ended(x *http1.Exchange, r http1.Result) {
	o, c, took, torn := p.observer, connOf(x), time.Since(x.Start), r.Broken != nil
	if r.Gone && x.File == nil || torn { // a file that a client takes a part of is no failure
		o.metrics.failed(reasonOf(r))
	}
	o.metrics.ended(r.Code, took)
	if file, ok := x.File.(CachedFile); ok {
		file.Served(r.Sent, took, r.Broken)
	}
	logged := c.request.reason != "" || o.logs(uint16(r.Code), torn)
	if !logged && o.sink == nil {
		return
	}
	ended := o.recordOf(x, r, took)
	o.sink.Record(ended)
	if !logged {
		return
	}
	a := access{peer: x.Client, host: record.Text(x.Request.Host), path: ended.Name, faulty: torn}
	if c.request.reason != "" { // the log says why no endpoint answered also where the record says that the client left
		ended.Reason, a.failure = c.request.reason, c.request.failure
	}
	o.write(&ended, a)
}
