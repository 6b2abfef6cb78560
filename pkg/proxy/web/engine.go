package web

import (
	"bytes"
	"crypto/tls"
	"net"
	"net/url"
	"time"

	"github.com/tinkerbell/stack/pkg/boot"
	"github.com/tinkerbell/stack/pkg/endpoint"
	"github.com/tinkerbell/stack/pkg/proxy/http1"
	"github.com/tinkerbell/stack/pkg/proxy/loop"
	"github.com/tinkerbell/stack/pkg/proxy/sock"
)

// Connections begin in package http1's engine, by way of what is in this file, and leave it once, for net/http's server
// (handoff.go). Without [Front.plain] there would be no request in the engine.

// Route implements http1.Owner.
func (c *conn) Route() http1.Route {
	if c.header || c.server.secure {
		return nil
	}
	if plain := c.server.front.plain(); plain != nil {
		return plain
	}
	return nil
}

// Received implements http1.Owner.
func (c *conn) Received(n int) { c.listener.metrics.bytesIn(n) }

// Sent implements http1.Owner.
func (c *conn) Sent(n int) { c.listener.metrics.bytesOut(int64(n)) }

// Progress implements http1.Owner.
func (c *conn) Progress() { c.lease.Touch() }

// Retired implements http1.Owner.
func (c *conn) Retired() bool { return c.server.retired.Load() }

// Closed implements http1.Owner.
func (c *conn) Closed() {
	c.listener.remove(c)
	c.closed.Store(true)
}

// HandOff implements http1.Owner: the connection is net/http's from now on.
func (c *conn) HandOff(h http1.Handoff) {
	socket, err := sock.NewSocket(h.FD)
	if err != nil { // what os.NewFile cannot use is no descriptor
		c.listener.log.Error("failed to take over connection", "error", err)
		c.closed.Store(true)
	}
	c.socket, c.early = socket, h.Early
	c.spoke.Store(len(h.Early) > 0)
	if h.Attempt != nil {
		c.attempt.Store(attemptOf(h.Attempt))
	}
	// From here on Close closes the socket; a goroutine that asked the engine to close it has set c.closed.
	if c.inLoop.Store(nil); c.lost() {
		_ = c.Close()
	}
	served := net.Conn(c)
	if c.server.secure {
		served = tls.Server(c, c.listener.tls) // the handshake is in the connection's own goroutine
	}
	if c.lost() || !c.server.connections.push(served) {
		_ = c.Close()
	}
}

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
	if p.files != nil {
		return p.beginFile(x)
	}
	e, err := p.settings.Pool.Acquire(x.Client)
	if err != nil {
		return false
	}
	c := connOf(x)
	c.lease.Touch()
	p.observer.metrics.began()
	if string(x.Request.Host) != c.forwarded.host || c.forwarded.lines == nil {
		c.forwarded.host = string(x.Request.Host)
		lines := forwardedHeaders{proto: "http", host: c.forwarded.host}.onlyPeer(x.Client).append(nil)
		c.forwarded.lines = appendHeader(lines, "Via", viaHTTP11)
	}
	x.Endpoint, x.Key, x.Added = e, p.proxy.transport.upstreams.key(e.Addr, x.Client), c.forwarded.lines
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
	if size := file.Size(); size >= boot.LongAnswer {
		p.observer.tellPlain(x, boot.Began, http1.Result{Code: 200, Expected: size}, 0)
	}
	return true
}

func connOf(x *http1.Exchange) *conn { return x.Conn().Owner().(*conn) }

// Cancel implements http1.Route.
func (p *plainRoute) Cancel(*http1.Exchange) { p.observer.metrics.handed() }

// Ended implements http1.Route.
func (p *plainRoute) Ended(x *http1.Exchange, r http1.Result) {
	o, took := p.observer, time.Since(x.Start)
	reason := reasonOf(r)
	if r.Gone && x.File == nil || r.Broken != nil {
		o.metrics.failed(reason)
	}
	o.metrics.ended(r.Code, took)
	if file, ok := x.File.(CachedFile); ok {
		file.Served(r.Sent, took, r.Broken)
	}
	at := x.Start.UnixNano() + int64(took)
	if o.tell != nil && (reason != "" || o.each.Allow(x.Client, at, r.Code, uint64(r.Expected))) {
		outcome := boot.Done
		if reason != "" {
			outcome = boot.Torn
		}
		o.tellPlain(x, outcome, r, took)
	}
	torn := r.Broken != nil
	if !o.logs(r.Code, torn) {
		return
	}
	o.record(&access{
		method: x.Request.Method(), path: string(plainPath(x.Request.Target)), host: string(x.Request.Host),
		client: x.Client, code: r.Code, bytes: r.Sent, took: took, agent: string(agentOf(&x.Request)), torn: torn,
	}, x.Client)
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
func (o *observer) tellPlain(x *http1.Exchange, outcome boot.Outcome, r http1.Result, took time.Duration) {
	if o.tell == nil {
		return
	}
	e := boot.Borrow()
	defer e.Return()
	e.Kind, e.At, e.Took = boot.HTTP, x.Start.UnixNano()+int64(took), took
	e.Route, e.Client = o.port, boot.Bytes(x.Client)
	if asked, ok := x.Endpoint.(*endpoint.Endpoint); ok {
		e.Endpoint, e.Port = boot.Bytes(asked.Addr.Addr()), asked.Addr.Port()
	}
	for _, l := range x.Request.Lines {
		if l.Is("range") {
			e.Offset = offset(l.Value)
		}
	}
	e.Outcome, e.Status, e.Bytes, e.Expected = outcome, uint16(r.Code), uint64(r.Sent), uint64(r.Expected)
	boot.SetText(e, boot.File, mostPath, plainPath(x.Request.Target))
	boot.SetText(e, boot.Agent, mostAgent, agentOf(&x.Request))
	o.name(e, x.Request.Method(), reasonOf(r))
	o.tell(e)
}
