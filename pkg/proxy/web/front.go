// Package web serves HTTP for one route: as a reverse proxy that tells the backend who is calling, or with a handler
// of its own such as files. It speaks HTTP/1.1 and, where the route asks for it, HTTP/2 without TLS (gRPC).
package web

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tinkerbell/stack/internal/loglimit"
	"github.com/tinkerbell/stack/pkg/edge/host"
	"github.com/tinkerbell/stack/pkg/endpoint"
	"github.com/tinkerbell/stack/pkg/proxy/admission"
	"github.com/tinkerbell/stack/pkg/proxy/loop"
	"github.com/tinkerbell/stack/pkg/proxy/shaper"
	"github.com/tinkerbell/stack/pkg/proxy/sock"
	"github.com/tinkerbell/stack/pkg/record"
)

// Config makes a [Front].
type Config struct {
	// Route names the front in logs, metrics and error pages.
	Route string
	// Listen is where to listen; without an address on all of them, IPv4 and IPv6.
	Listen netip.AddrPort
	// Settings are what [Front.Update] may change.
	Settings
	// Sink gets requests that wait for their endpoints, long answers and gRPC calls when they begin, how far long answers
	// have got, and every request when it has ended. It may be nil.
	Sink record.Sink
	// Logger may be nil. Lines get the route they are about: the front's own, or one of Sites.
	Logger *slog.Logger
	// Metrics may be nil.
	Metrics *Metrics
	// Account bounds the memory and descriptors of the connections; nil does not.
	Account *admission.Account
	// Loops are the event loops in which connections begin and plain requests are served. They are to run until the front
	// has ended. Nil is one of the front's own, and net/http's server gets all requests.
	Loops *loop.Group
}

// Settings are what later requests and connections are handled by.
type Settings struct {
	// Route names the first of the routes that share the socket, where it is another than [Config.Route].
	Route string
	// Pool is the backend, unless Handler answers.
	Pool *endpoint.Pool
	// Handler answers instead of a backend. Ready tells whether it can; nil means always.
	Handler http.Handler
	Ready   func() error
	// GRPC speaks HTTP/2 without TLS to clients and endpoints. HTTP/1.1 is then refused.
	GRPC bool
	// Trusted prefixes are the peers whose X-Forwarded-For and like headers are believed.
	Trusted []netip.Prefix
	Timeouts
	// MaxHeader bounds a request's header in bytes; default 64 KiB.
	MaxHeader int
	// MaxConnections bounds the connections of the front, MaxPerClient those of one peer; 0 does not.
	MaxConnections, MaxPerClient int
	// AcceptProxy prefixes are the peers whose connections begin with a PROXY header.
	AcceptProxy []netip.Prefix
	// Shaper limits the route's rate, which may be set or changed while answers are under way; nil where the route can
	// never have one. Rate is that of these settings, in bits a second; where it is not 0, the engine takes no requests.
	Shaper *shaper.Shaper
	Rate   int64
	// TLS ends TLS on the connections that are for the route; nil does not. It offers h2 and http/1.1. Sites have their
	// own, all or none. It should not take the session tickets of another one.
	TLS *tls.Config
	// Secure makes TLS of connections to endpoints; nil leaves them as they are.
	Secure Secure
	// Gate stands before the requests; nil lets all of them pass.
	Gate Gate
	// Hosts are the names that the route is for, where Sites share the socket.
	Hosts host.Hosts
	// Sites are the other routes that share the socket.
	Sites []Site
	// AccessLog says which requests are logged.
	AccessLog AccessLog
	// Drain bounds how long requests may go on after the front was told to end.
	Drain time.Duration
}

// Timeouts of a [Front]. Below 0 there is none.
type Timeouts struct {
	// Dial bounds one attempt to connect to an endpoint; default 2 s.
	Dial time.Duration
	// Header bounds the time a client takes for a request's header; default 10 s.
	Header time.Duration
	// Stall bounds how long a client may take or give nothing in the midst of a body; default 60 s. There is no
	// limit on the whole: a machine may load an image for an hour.
	Stall time.Duration
	// Idle bounds the wait for the next request; default 120 s.
	Idle time.Duration
	// Response bounds the time an endpoint takes for a response's header; default 60 s, none for gRPC.
	Response time.Duration
}

func (s *Settings) setDefaults() {
	if s.GRPC {
		s.Response = cmp.Or(s.Response, -1)
		s.Stall = cmp.Or(s.Stall, -1)
	}
	s.Dial = cmp.Or(s.Dial, 2*time.Second)
	s.Header = cmp.Or(s.Header, 10*time.Second)
	s.Stall = cmp.Or(s.Stall, time.Minute)
	s.Idle = cmp.Or(s.Idle, 2*time.Minute)
	s.Response = cmp.Or(s.Response, time.Minute)
	s.MaxHeader = cmp.Or(s.MaxHeader, 64<<10)
	for i := range s.Sites {
		s.Sites[i].setDefaults()
	}
}

// Front listens for one route.
type Front struct {
	config      Config
	log         *slog.Logger
	connections *connections
	metrics     *routeMetrics
	loops       []*frontLoop
	own         *loop.Group       // where the front was given no loops
	lines       *loglimit.Clients // in the log

	mu      sync.Mutex
	current atomic.Pointer[generation]
	serving func(*server)  // set while Serve runs
	servers sync.WaitGroup // that serve: the one in force, and those that were replaced
	leaving atomic.Bool    // see Leave
	ending  atomic.Bool
}

// generation is what one set of settings made.
type generation struct {
	settings Settings
	sites    []*site // the front's own route, then settings.Sites
	handler  http.Handler
	hosts    *host.Mux // chooses among the sites; nil where there is one for any host
	server   *server
	plain    *plainRoute // nil where all requests are net/http's
}

// keepalive is when the kernel first asks whether a silent client is there.
const keepalive = 30 * time.Second

// Listen binds the front's socket.
func Listen(c Config) (*Front, error) {
	c.Logger = cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
	f := &Front{config: c, log: c.Logger.With("route", c.Route), metrics: c.Metrics.route(c.Route)}
	f.lines = loglimit.NewClients(f.log)
	if c.Loops == nil {
		f.own = loop.NewGroup(1)
		c.Loops = f.own
	}
	socket, err := sock.Listen(c.Listen, false, sock.Options{Keepalive: keepalive, UserTimeout: time.Minute})
	if err != nil {
		return nil, fmt.Errorf("failed to listen for route %s: %w", c.Route, err)
	}
	f.connections = &connections{
		socket: socket, server: func() *server { return f.current.Load().server },
		metrics: f.metrics, log: f.log, lines: f.lines, account: c.Account.Route(c.Route),
	}
	f.connections.tls = &tls.Config{MinVersion: tls.VersionTLS12, GetConfigForClient: f.configFor}
	f.loops = f.loopsOf(c.Loops.Loops())
	f.Update(c.Settings)
	return f, nil
}

// Addr is where the front listens.
func (f *Front) Addr() netip.AddrPort { return f.connections.socket.Addr() }

// Active is the number of open connections.
func (f *Front) Active() int { return f.connections.active(nil) }

// Ready is nil when a request could be answered.
func (f *Front) Ready() error {
	var reasons []error
	for _, s := range f.current.Load().sites {
		reasons = append(reasons, s.settings.ready())
	}
	return errors.Join(reasons...)
}

// ReadyFor is nil when a request for one of the routes that share the socket could be answered.
func (f *Front) ReadyFor(route string) error {
	if s := f.current.Load().site(route); s != nil {
		return s.settings.ready()
	}
	return nil
}

func (s *Settings) ready() error {
	if s.Gate != nil {
		if err := s.Gate.Ready(); err != nil {
			return err
		}
	}
	switch {
	case s.Handler == nil:
		return s.Pool.Ready()
	case s.Ready != nil:
		return s.Ready()
	default:
		return nil
	}
}

// Handler is a route's handler in force, and how it tells whether it can answer; nil where a backend answers.
func (f *Front) Handler(route string) (http.Handler, func() error) {
	if s := f.current.Load().site(route); s != nil {
		return s.settings.Handler, s.settings.Ready
	}
	return nil, nil
}

// Update sets what later requests are handled by. The socket stays, and requests under way keep their settings.
// Connections stay, unless the change concerns the reading of requests: then each is closed after its next answer,
// however long that takes; or TLS begins or ends on the socket: then all have ended at the drain's deadline.
func (f *Front) Update(s Settings) {
	s.setDefaults()
	f.mu.Lock()
	defer f.mu.Unlock()
	old := f.current.Load()
	if old != nil && same(old.settings, s) {
		return
	}
	next := f.newGeneration(s, old)
	f.connections.settings.Store(&next.settings)
	f.current.Store(next)
	if old != nil {
		old.closeProxies(next)
	}
	if f.serving != nil && next.server != old.server {
		f.serving(next.server)
		f.servers.Go(func() { f.shut(old, f.ending.Load, endsAll(&old.settings, &s)) })
	}
}

// same compares settings; a handler is the same when it is the same value.
func same(a, b Settings) bool {
	sameReady := (a.Ready == nil) == (b.Ready == nil)
	sameHandler := a.Handler == b.Handler
	sameSites := slices.EqualFunc(a.Sites, b.Sites, func(a, b Site) bool {
		return a.Route == b.Route && same(a.Settings, b.Settings)
	})
	sameGate := a.Gate == b.Gate && a.TLS == b.TLS && a.Secure == b.Secure
	a.Ready, b.Ready, a.Handler, b.Handler, a.Sites, b.Sites = nil, nil, nil, nil, nil, nil
	a.Gate, b.Gate, a.TLS, b.TLS, a.Secure, b.Secure = nil, nil, nil, nil, nil, nil
	return sameReady && sameHandler && sameSites && sameGate && reflect.DeepEqual(a, b)
}

func (f *Front) newGeneration(s Settings, old *generation) *generation {
	g := &generation{settings: s}
	g.sites = f.newSites(&g.settings, old)
	if f.own == nil {
		g.plain = plainRouteOf(g.sites)
	}
	g.handler, g.hosts = f.choose(g.sites)
	if old != nil && sameServer(&old.settings, &s) {
		g.server = old.server
	} else {
		g.server = f.newServer(s)
	}
	return g
}

// Leave has the front still take connections, and end each behind its next answer in HTTP/1: a client that keeps its
// connection goes elsewhere with its next request, before [Front.Serve] is told to end.
func (f *Front) Leave() { f.leaving.Store(true) }

// orNone turns what the settings take for "none", a time below 0, into what net/http does.
func orNone(d time.Duration) time.Duration { return max(d, 0) }

// Serve takes connections until ctx is done, then lets requests end until the drain's deadline, and closes what is
// left. HTTP/2 clients get a GOAWAY. Where ctx is done already it just closes the socket.
func (f *Front) Serve(ctx context.Context) error {
	defer f.lines.Flush()
	defer f.connections.socket.Close()
	if ctx.Err() != nil {
		return nil
	}
	if f.own != nil {
		life, end := context.WithCancel(context.WithoutCancel(ctx))
		var running sync.WaitGroup
		running.Go(func() { _ = f.own.Run(life) })
		defer running.Wait()
		defer end()
	}
	begin := func(s *server) {
		f.servers.Go(func() { _ = s.Serve(s.queue) }) // until shut
	}
	f.mu.Lock()
	begin(f.current.Load().server)
	f.serving = begin
	f.mu.Unlock()
	acceptors := make([]*sock.Acceptor, len(f.loops))
	for i, in := range f.loops {
		acceptors[i] = in.acceptor
	}
	err := sock.Accept(ctx, acceptors...)
	if err != nil {
		err = fmt.Errorf("failed to accept connections of route %s: %w", f.config.Route, err)
	}
	f.mu.Lock()
	f.serving = nil
	f.mu.Unlock()
	f.connections.socket.Close()
	f.ending.Store(true)
	f.shut(f.current.Load(), func() bool { return true }, true)
	for _, in := range f.loops {
		in.engine.Wait()
	}
	f.servers.Wait()
	return err
}
