// Package tcp passes TCP connections through to a pool's endpoints. The two directions are independent: an end of
// stream is passed on as a half-close, a reset as a reset.
//
// Not its job: looking into the stream, or keeping a connection alive when its endpoint is gone.
package tcp

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tinkerbell/stack/internal/loglimit"
	"github.com/tinkerbell/stack/pkg/boot"
	"github.com/tinkerbell/stack/pkg/endpoint"
	"github.com/tinkerbell/stack/pkg/proxy/admission"
	"github.com/tinkerbell/stack/pkg/proxy/loop"
	"github.com/tinkerbell/stack/pkg/proxy/sock"
	"github.com/tinkerbell/stack/pkg/record"
)

// Config makes a [Front].
type Config struct {
	// Route names the front in logs and metrics.
	Route string
	// Listen is where to listen; without an address on all addresses, IPv4 and IPv6.
	Listen netip.AddrPort
	// Freebind listens at an address that this host does not have yet (IP_FREEBIND, ip(7)).
	Freebind bool
	// Loops accept the connections and serve them. They must run until Serve has ended, or it resets what is open.
	Loops *loop.Group
	// Account bounds the memory and descriptors of the connections; nil does not.
	Account *admission.Account
	// Options are every connection's; without any a silent peer is probed after 30 s, and may leave data unacknowledged
	// for 60 s.
	Options sock.Options
	// Settings are what [Front.Update] may change.
	Settings
	// Sink gets each connection when it has its endpoint, then each [record.Progress] what its client has got, and its
	// end. It may be nil.
	Sink record.Sink
	// Logger may be nil.
	Logger *slog.Logger
	// Metrics may be nil.
	Metrics *Metrics
}

// Settings hold for the connections that are accepted after they were set.
type Settings struct {
	// Pool is the backend.
	Pool *endpoint.Pool
	// Dial bounds one attempt to connect; Attempts how many endpoints are tried. Defaults 2 s and 3.
	Dial     time.Duration
	Attempts int
	// Idle ends a connection on which nothing moved in either direction; 0 never does: a gRPC stream may be
	// silent for hours, and keepalive finds the dead ones.
	Idle time.Duration
	// Drain bounds how long connections may go on after the front was told to end.
	Drain time.Duration
	// MaxConnections bounds the connections of the front, MaxPerClient those of one client address; 0 does not.
	MaxConnections, MaxPerClient int
	// Sources are the prefixes of the peers that are served; none is all.
	Sources []netip.Prefix
	// AcceptProxy are the prefixes of load balancers, whose connections begin with a PROXY header.
	AcceptProxy []netip.Prefix
	// SendProxy is the version of the PROXY header for the endpoint, 1 or 2; 0 sends none.
	SendProxy int
}

// Front listens for one route.
type Front struct {
	config   Config
	log      *slog.Logger
	listener *sock.Listener
	settings atomic.Pointer[Settings]
	metrics  *routeMetrics
	account  *admission.Charges
	lines    *loglimit.Clients // in the log

	conns sock.Conns[*session]
	done  sync.WaitGroup
}

// Listen binds the front's socket.
func Listen(c Config) (*Front, error) {
	if len(c.Loops.Loops()) == 0 {
		return nil, fmt.Errorf("failed to listen for route %s: no loops", c.Route)
	}
	c.Options = cmp.Or(c.Options, sock.Options{Keepalive: 30 * time.Second, UserTimeout: time.Minute})
	f := &Front{
		config:  c,
		log:     cmp.Or(c.Logger, slog.New(slog.DiscardHandler)),
		metrics: c.Metrics.route(c.Route),
		account: c.Account.Route(c.Route),
	}
	f.lines = loglimit.NewClients(f.log)
	f.Update(c.Settings)
	var err error
	if f.listener, err = sock.Listen(c.Listen, c.Freebind, c.Options); err != nil {
		return nil, fmt.Errorf("failed to listen for route %s: %w", c.Route, err)
	}
	return f, nil
}

// Addr is where the front listens.
func (f *Front) Addr() netip.AddrPort { return f.listener.Addr() }

// Ready is nil when there is an endpoint for a connection.
func (f *Front) Ready() error { return f.settings.Load().Pool.Ready() }

// Update sets the settings of later connections. Open connections keep theirs.
func (f *Front) Update(s Settings) {
	s.Dial = cmp.Or(s.Dial, 2*time.Second)
	s.Attempts = cmp.Or(s.Attempts, 3)
	f.settings.Store(&s)
}

// Active is the number of open connections.
func (f *Front) Active() int { return f.conns.Len() }

// Serve accepts connections until ctx is done, then waits until the open ones have ended or the time for a drain is
// over, and closes the rest. If ctx is done already, it only closes the socket, and the loops need not run.
func (f *Front) Serve(ctx context.Context) error {
	defer f.lines.Flush()
	defer f.listener.Close()
	if ctx.Err() != nil {
		return nil
	}
	var acceptors []*sock.Acceptor
	for _, l := range f.config.Loops.Loops() {
		acceptors = append(acceptors, newFrontLoop(f, l).acceptor)
	}
	err := sock.Accept(ctx, acceptors...)
	f.listener.Close()
	if err != nil {
		err = fmt.Errorf("failed to accept connections of route %s: %w", f.config.Route, err)
	}
	f.drain()
	return err
}

// add counts a connection, unless the front has as many as it may.
func (f *Front) add(s *session) bool {
	// The client is counted, within MaxPerClient, when it is known.
	if f.conns.Add(s, netip.Addr{}, s.settings.MaxConnections, 0, nil) != nil {
		f.metrics.refusals[refusedLimit].Inc()
		return false
	}
	f.metrics.connections.Inc()
	f.metrics.open.Inc()
	f.done.Add(1)
	return true
}

func (f *Front) remove(s *session) {
	f.conns.Remove(s)
	s.charge.Release()
	s.recordEnd()
	f.metrics.open.Dec()
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
	case <-f.config.Loops.Loops()[0].Ended(): // all end when one fails
	}
	open := slices.Collect(f.conns.All())
	for _, s := range open {
		s.do(func() { s.abort(boot.ReasonDrained) })
	}
	f.log.Warn("closed connections that did not end in time", "connections", len(open))
	<-ended
}
