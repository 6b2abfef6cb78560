// Package tcp passes TCP connections through to a pool's endpoints: both directions on their own, an end of stream
// as a half-close, a reset as a reset.
//
// It can end TLS, and make TLS of what goes to the endpoints; the stream is then copied by records instead of spliced.
//
// Not its job: looking into the stream, or keeping a connection alive when its endpoint is gone.
package tcp

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tinkerbell/stack/pkg/boot"
	"github.com/tinkerbell/stack/pkg/endpoint"
	"github.com/tinkerbell/stack/pkg/proxy/admission"
	"github.com/tinkerbell/stack/pkg/proxy/loop"
	"github.com/tinkerbell/stack/pkg/proxy/queue"
	"github.com/tinkerbell/stack/pkg/proxy/shaper"
	"github.com/tinkerbell/stack/pkg/proxy/sock"
)

// Config makes a [Front].
type Config struct {
	// Route names the front in logs and metrics.
	Route string
	// Listen is where to listen; without an address on all of them, IPv4 and IPv6.
	Listen netip.AddrPort
	// Freebind listens at an address that this host does not have yet (IP_FREEBIND, ip(7)).
	Freebind bool
	// Loops accept the connections and serve the short ones. They must run until Serve has ended.
	Loops *loop.Group
	// Account bounds the memory and descriptors of the connections; nil does not.
	Account *admission.Account
	// Settings are what [Front.Update] may change.
	Settings
	// Event is told of each connection when it has its endpoint, and when it has ended. The event is valid during the
	// call. It is called from several goroutines and from loops, and must not wait. Nil: no events.
	Event func(*boot.Event)
	// Logger may be nil.
	Logger *slog.Logger
	// Metrics may be nil.
	Metrics *Metrics
}

// Settings are what later connections are handled by.
type Settings struct {
	// Pool is the backend.
	Pool *endpoint.Pool
	// Dial bounds one attempt to connect; Attempts how many endpoints are tried. Defaults 2 s and 3.
	Dial     time.Duration
	Attempts int
	// Idle ends a connection on which nothing moved in either direction; 0 never does: a gRPC stream may be
	// silent for hours, and keepalive finds the dead ones.
	Idle time.Duration
	// Keepalive is how long a connection is silent before the kernel probes its peer (three times, a third of
	// that apart). Default 30 s, below 0 never.
	Keepalive time.Duration
	// UserTimeout is how long sent data may stay unacknowledged, or a peer may read nothing of what waits for it:
	// the kernel takes a window that stays closed for no answer (TCP_USER_TIMEOUT, RFC 5482). Default 60 s, below 0
	// the kernel's own (some 15 minutes, and never for a closed window).
	UserTimeout time.Duration
	// Drain bounds how long connections may go on after the front was told to end.
	Drain time.Duration
	// MaxConnections bounds the connections of the front, MaxPerClient those of one client address; 0 does not.
	MaxConnections, MaxPerClient int
	// Shaper has the route's rate. It may change, or come to be, while connections are open. Nil is none for good. Rate
	// is the rate at first, in bits a second: where there is one, connections do not begin in a loop, which cannot wait.
	Shaper *shaper.Shaper
	Rate   int64
	// Queue bounds the machines that are served at a time; nil does not. Machines is the bound at first: where there is
	// one, connections do not begin in a loop.
	Queue    *queue.Queue
	Machines int
	// Sources are the prefixes of peers whose connections are taken; none is all.
	Sources []netip.Prefix
	// AcceptProxy prefixes are those whose connections begin with a PROXY header that tells the client.
	AcceptProxy []netip.Prefix
	// SendProxy tells the endpoint the client by a PROXY header: version 1 or 2; 0 does not.
	SendProxy int
	// TLS ends TLS on clients' connections; nil does not.
	TLS *tls.Config
	// Secure makes TLS of connections to endpoints; nil leaves them as they are.
	Secure Secure
	// Gate is asked for readiness, besides the pool; nil is ready.
	Gate interface{ Ready() error }
}

// options are those of every connection.
func (s *Settings) options() sock.Options {
	return sock.Options{Keepalive: s.Keepalive, UserTimeout: s.UserTimeout}
}

// Front listens for one route.
type Front struct {
	config   Config
	log      *slog.Logger
	listener *sock.Listener
	settings atomic.Pointer[Settings]
	metrics  *routeMetrics
	room     *admission.Route
	spare    boot.Allowance // of events of refused connections

	conns sock.Conns[*session]
	done  sync.WaitGroup

	hurry     sync.Once
	hurriedly chan struct{} // closed when connections are not waited for any more
}

// Listen binds the front's socket.
func Listen(c Config) (*Front, error) {
	if len(c.Loops.Loops()) == 0 {
		return nil, fmt.Errorf("failed to listen for route %s: no loops", c.Route)
	}
	f := &Front{
		config:  c,
		log:     c.Logger,
		metrics: c.Metrics.route(c.Route),
		room:    c.Account.Route(c.Route),

		hurriedly: make(chan struct{}),
	}
	if f.log == nil {
		f.log = slog.New(slog.DiscardHandler)
	}
	f.Update(c.Settings)
	var err error
	if f.listener, err = sock.Listen(c.Listen, c.Freebind, f.settings.Load().options()); err != nil {
		return nil, fmt.Errorf("failed to listen for route %s: %w", c.Route, err)
	}
	return f, nil
}

// Addr is where the front listens.
func (f *Front) Addr() netip.AddrPort { return f.listener.Addr() }

// Ready is nil when a connection would find an endpoint to try.
func (f *Front) Ready() error {
	s := f.settings.Load()
	if s.Gate != nil {
		if err := s.Gate.Ready(); err != nil {
			return err
		}
	}
	return s.Pool.Ready()
}

// Update sets what later connections are handled by. Those that are open go on as they began.
func (f *Front) Update(s Settings) {
	if s.Dial == 0 {
		s.Dial = 2 * time.Second
	}
	if s.Attempts == 0 {
		s.Attempts = 3
	}
	if s.Keepalive == 0 {
		s.Keepalive = 30 * time.Second
	}
	if s.UserTimeout == 0 {
		s.UserTimeout = time.Minute
	}
	before := f.settings.Swap(&s)
	if before == nil || before.options() == s.options() {
		return
	}
	if err := f.listener.Set(s.options()); err != nil {
		f.log.Warn("failed to set keepalive", "error", err)
	}
}

// Active is the number of open connections.
func (f *Front) Active() int { return f.conns.Len() }

// Serve takes connections until ctx is done, then lets the open ones end until the drain's deadline, and closes
// what is left. Where ctx is done already it just closes the socket, and the loops need not run.
func (f *Front) Serve(ctx context.Context) error {
	defer f.listener.Close()
	if ctx.Err() != nil {
		return nil
	}
	var acceptLoops []*acceptLoop
	var acceptors []*sock.Acceptor
	for _, l := range f.config.Loops.Loops() {
		a := f.newAcceptLoop(ctx, l)
		acceptLoops, acceptors = append(acceptLoops, a), append(acceptors, a.acceptor)
	}
	err := sock.Accept(ctx, acceptors...)
	for _, a := range acceptLoops {
		a.close()
	}
	f.listener.Close()
	if err != nil {
		err = fmt.Errorf("failed to accept connections of route %s: %w", f.config.Route, err)
	}
	f.drain()
	return err
}

// Hurry ends the drain at once, now or when Serve is told to end: connections that are open then are reset.
func (f *Front) Hurry() { f.hurry.Do(func() { close(f.hurriedly) }) }

// add counts a connection, unless there are as many as may be.
func (f *Front) add(s *session) bool {
	if f.conns.Add(s, netip.Addr{}, s.settings.MaxConnections, 0, nil) != nil {
		f.metrics.refused(refusedLimit)
		return false
	}
	f.metrics.opened()
	f.done.Add(1)
	return true
}

func (f *Front) remove(s *session) {
	f.conns.Remove(s)
	s.lease.Release()
	s.tellEnd()
	f.metrics.closed()
	f.done.Done()
}

// drain waits for the open connections until the deadline, then closes them.
func (f *Front) drain() {
	ended := make(chan struct{})
	go func() {
		f.done.Wait()
		close(ended)
	}()
	limit := f.settings.Load().Drain
	if left := f.Active(); left > 0 {
		f.log.Info("draining connections", "connections", left, "seconds", limit.Seconds())
	}
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-ended:
		return
	case <-timer.C:
	case <-f.hurriedly:
	}
	left := 0
	for s := range f.conns.All() {
		s.abort()
		left++
	}
	f.log.Warn("closed connections that did not end in time", "connections", left)
	<-ended
}
