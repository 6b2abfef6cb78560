package web

import (
	"bytes"
	"errors"
	"net"
	"net/http"
	"net/url"
	"os"
	"time"

	"github.com/tinkerbell/stack/pkg/boot"
	"github.com/tinkerbell/stack/pkg/endpoint"
	"github.com/tinkerbell/stack/pkg/proxy/http1"
	"github.com/tinkerbell/stack/pkg/proxy/loop"
	"github.com/tinkerbell/stack/pkg/proxy/sock"
)

// plain is the route that serves plain requests in the engine; nil where all requests are net/http's.
func (f *Front) plain() *plainRoute { return f.current.Load().plain }

// CachedFile is a file that is in the operating system's memory.
type CachedFile interface {
	http1.File
	// Served counts how much of it was sent, and in which time, and tells of an error of reading it.
	Served(bytes int64, took time.Duration, failure error)
}

// CachedFiles may be implemented by a [Settings].Handler.
type CachedFiles interface {
	// Cached is the file that a GET of a path is answered with, whole; nil where that is not known without waiting, or
	// where the answer depends on more than the path.
	Cached(path string) CachedFile
}

// plainRoute is what plain requests are served by. A generation has one where an event loop may serve all that is
// plain: the socket is one route's, a backend answers or files do, nothing stands in front of it but a gate that
// looks at nothing but the target, and nothing has to be waited for but sockets.
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
		if p.passes = s.Gate.Passing(); p.passes == nil {
			return nil
		}
	}
	return p
}

// Upstreams implements http1.Route.
func (p *plainRoute) Upstreams() *http1.Upstreams { return p.proxy.transport.upstreams.loops }

// Begin implements http1.Route.
func (p *plainRoute) Begin(x *http1.Exchange) bool {
	if p.passes != nil && (x.Request.Post || !p.passes(x.Request.Target)) || trusts(p.settings.Trusted, x.Client) {
		return false
	}
	c := connOf(x)
	c.plainRequest = plainRequest{}
	if p.files != nil {
		return p.beginFile(x)
	}
	c.attempts = p.settings.Pool.Attempts(x.Client, attempts)
	if !p.nextEndpoint(x) {
		return false
	}
	c.lease.Touch()
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
	x.Added, x.Dial, x.Response = c.forwarded.lines, atLeast(p.settings.Dial), atLeast(p.settings.Response)
	return true
}

// nextEndpoint gives the request to an endpoint that has not been tried for it; false where there is none.
func (p *plainRoute) nextEndpoint(x *http1.Exchange) bool {
	c := connOf(x)
	e, err := c.attempts.Next()
	if err != nil {
		c.failure = err
		return false
	}
	c.to, x.Endpoint, x.Key = e.Addr, e, p.proxy.transport.upstreams.key(e.Addr, x.Client)
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
	connOf(x).lease.Touch()
	p.observer.metrics.began()
	x.File = file
	p.Passing(x, http1.Result{Code: http.StatusOK, Expected: file.Size()})
	return true
}

func connOf(x *http1.Exchange) *plainConn { return x.Conn().Owner().(*plainConn) }

// Failed implements http1.Route.
func (p *plainRoute) Failed(x *http1.Exchange, dialing bool, err error) *http1.Refusal {
	c, operation, outcome := connOf(x), "read", endpoint.Failed
	if dialing {
		operation, outcome = "dial", endpoint.Refused
	}
	if sock.Exhausted(err) {
		outcome = endpoint.Spoiled
	} else {
		p.proxy.transport.upstreams.drop(c.to)
	}
	// As package net has it:
	if dialing || errors.As(err, new(*os.SyscallError)) || errors.Is(err, os.ErrDeadlineExceeded) {
		err = &net.OpError{Op: operation, Net: "tcp", Addr: net.TCPAddrFromAddrPort(c.to), Err: err}
	}
	c.attempts.Done(outcome, err)
	if p.nextEndpoint(x) {
		p.observer.metrics.retried()
		return nil
	}
	code, reason := failureOf(c.failure)
	c.reason = reason
	p.observer.metrics.failed(c.reason)
	lines := ""
	if code == http.StatusServiceUnavailable {
		lines = "Retry-After: 2\r\n"
	}
	return refusal(code, lines, p.proxy.sayFailure(code, c.reason))
}

// refusal is an answer in the form of package reply's.
func refusal(code int, lines, text string) *http1.Refusal {
	return &http1.Refusal{
		Code: code, Text: text + "\n",
		Lines: lines + "Cache-Control: no-store\r\nContent-Type: text/plain; charset=utf-8\r\n" +
			"X-Content-Type-Options: nosniff\r\n",
	}
}

// Passing implements http1.Route: it tells of a long answer that it is under way, once.
func (p *plainRoute) Passing(x *http1.Exchange, r http1.Result) {
	if c := connOf(x); !c.announced && max(r.Sent, r.Expected) >= boot.LongAnswer {
		c.announced = true
		p.observer.tellPlain(x, boot.Began, "", http1.Result{Code: r.Code, Expected: r.Expected}, 0)
	}
}

// Ended implements http1.Route.
func (p *plainRoute) Ended(x *http1.Exchange, r http1.Result) {
	o, c, took := p.observer, connOf(x), time.Since(x.Start)
	outcome, reason := boot.Done, reasonOf(r)
	switch {
	case reason == reasonGone && x.File != nil: // a file that a client takes a part of is no failure
		outcome = boot.Torn
	case reason != "":
		outcome = boot.Torn
		o.metrics.failed(reason)
	case c.reason != "":
		outcome, reason = boot.NoServer, c.reason
	}
	o.metrics.ended(r.Code, took)
	if file, ok := x.File.(CachedFile); ok {
		file.Served(r.Sent, took, r.Broken)
	}
	at := x.Start.UnixNano() + int64(took)
	if o.tell != nil && (reason != "" || o.each.Allow(x.Client, at, r.Code, uint64(max(r.Sent, r.Expected)))) {
		o.tellPlain(x, outcome, reason, r, took)
	}
	torn := r.Broken != nil
	if c.reason == "" && !o.logs(r.Code, torn) {
		return
	}
	a := &access{
		method: x.Request.Method(), path: string(plainPath(x.Request.Target)), host: string(x.Request.Host),
		client: x.Client, code: r.Code, bytes: r.Sent, took: took, agent: string(agentOf(&x.Request)), torn: torn,
		faulty: torn,
	}
	if c.reason != "" {
		a.reason, a.failure = c.reason, c.failure
	}
	o.record(a, x.Client)
}

// reasonOf is why an answer did not get whole to its client; empty if it did.
func reasonOf(r http1.Result) string {
	switch {
	case r.Broken != nil:
		return reasonTorn
	case r.Gone:
		return reasonGone
	default:
		return ""
	}
}

// plainPath is the decoded path of a plain target, in which two hex digits follow each percent sign.
// It allocates for these only.
func plainPath(target []byte) []byte {
	raw, _, _ := bytes.Cut(target, []byte("?"))
	if bytes.IndexByte(raw, '%') >= 0 {
		if decoded, err := url.PathUnescape(string(raw)); err == nil {
			return []byte(decoded)
		}
	}
	return raw
}

// agentOf is the User-Agent of a plain request.
func agentOf(r *http1.Request) []byte {
	for _, l := range r.Lines {
		if l.Is("user-agent") {
			return l.Value
		}
	}
	return nil
}

// tellPlain tells of a plain request: that its long answer is under way, or how it ended.
func (o *observer) tellPlain(
	x *http1.Exchange, outcome boot.Outcome, reason string, r http1.Result, took time.Duration,
) {
	if o.tell == nil {
		return
	}
	e := boot.Borrow()
	defer e.Return()
	e.Kind, e.At, e.Took = boot.HTTP, x.Start.UnixNano()+int64(took), took
	e.Route, e.Client = o.port, boot.Bytes(x.Client)
	if asked := connOf(x).to; asked.IsValid() {
		e.Endpoint, e.Port = boot.Bytes(asked.Addr()), asked.Port()
	}
	for _, l := range x.Request.Lines {
		if l.Is("range") {
			e.Offset = offset(l.Value)
		}
	}
	e.Outcome, e.Status, e.Bytes, e.Expected = outcome, uint16(r.Code), uint64(r.Sent), uint64(r.Expected)
	boot.SetText(e, boot.File, mostPath, plainPath(x.Request.Target))
	boot.SetText(e, boot.Agent, mostAgent, agentOf(&x.Request))
	o.name(e, x.Request.Method(), reason)
	o.tell(e)
}
