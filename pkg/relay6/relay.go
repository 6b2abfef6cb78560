// Package relay6 is a DHCPv6 relay agent for provisioning (RFC 9915 section 19): it receives machines' messages on
// one or more VLANs, sends them to servers elsewhere, and brings the answers back.
//
//	listener (raw frames) ─► policy, gate ─► RELAY-FORW around it ─► UDP 547 ─► servers
//	listener (raw frames) ◄─ pending      ◄─ RELAY-REPL off it    ◄─ UDP 547 ◄─┘
//
// Machines send to ff02::1:2, which does not leave their link. The same UDP socket serves relay agents that send to
// this host by unicast. The packages below pkg/relay are shared with that one. docs/dhcp-relay.md has the reasons for
// which messages are dropped.
package relay6

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"log/slog"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/tinkerbell/stack/internal/loglimit"
	"github.com/tinkerbell/stack/pkg/endpoint"
	"github.com/tinkerbell/stack/pkg/relay/admit"
	"github.com/tinkerbell/stack/pkg/relay/links"
	"github.com/tinkerbell/stack/pkg/relay/metrics"
	"github.com/tinkerbell/stack/pkg/relay/pending"
	"github.com/tinkerbell/stack/pkg/relay/server"
	"github.com/tinkerbell/stack/pkg/relay/trace"
)

// Relay is a daemon.Task.
type Relay struct {
	config     Config
	logger     *slog.Logger
	verbose    bool // transactions are logged
	metrics    *metrics.Metrics[Drop]
	logLimiter *loglimit.Limiter
	pending    *pending.Table[key, origin]
	limits     *admit.Limiter
	queues     []*queue // that of relay agents' unicasts, and those of the listeners
	seed       maphash.Seed
	listeners  []*vlan
	upstream   *upstream
	servers    *server.Pool
	trace      *trace.Ring
	start      time.Time
	// targets are those that packets go to; servers replaces them as a whole.
	targets atomic.Pointer[server.Targets]
}

// New checks the configuration and binds the upstream socket, so that a port that is taken is an error at once.
func New(config Config) (*Relay, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	r, err := assemble(config.withDefaults())
	if err != nil {
		return nil, err
	}
	if r.upstream, err = newUpstream(r); err != nil {
		return nil, err
	}
	return r, nil
}

// assemble makes everything but the sockets.
func assemble(config Config) (*Relay, error) {
	logger := config.Logger.With("family", "ipv6")
	r := &Relay{
		config:     config,
		logger:     logger,
		verbose:    logger.Enabled(context.Background(), slog.LevelDebug),
		logLimiter: loglimit.New(logger, 1, time.Minute),
		pending:    pending.New[key, origin](config.Pending, config.PendingExpiry, len(config.Servers)),
		limits:     admit.NewLimiter(config.ClientRate, config.TotalRate),
		start:      time.Now(),
		seed:       maphash.MakeSeed(),
	}
	r.trace = newTrace(r)
	var err error
	pending := func() float64 { return float64(r.pending.Sweep(r.now())) }
	if r.metrics, err = newMetrics(config.Registerer, config.Listeners, pending, r.waiting); err != nil {
		return nil, err
	}
	r.targets.Store(&server.Targets{})
	for i := unicast; i < len(config.Listeners); i++ {
		r.queues = append(r.queues, newQueue(r, i))
	}
	for i, l := range config.Listeners {
		v, err := newVLAN(r, i, l)
		if err != nil {
			return nil, err
		}
		r.listeners = append(r.listeners, v)
	}
	r.servers = server.New(server.Config{
		Names: config.Servers, Port: serverPort, IPv6: true,
		Interface: config.UpstreamInterface, Address: config.UpstreamAddress,
		ResolveInterval: config.ResolveInterval, Lookup: config.Lookup, DeadAfter: config.DeadAfter,
		NoName: endpoint.ErrNotFound, Optional: config.ServersOptional,
		Crowded: r.crowded, Clock: r.now, Wall: r.wall, Publish: r.targets.Store,
		Words: server.Words{
			Source: "upstream_address", Settings: "DHCPV6_UPSTREAM_ADDRESS and UPSTREAM_INTERFACE",
			Identity: "peer address, transaction or client identifier",
		},
		Logger: logger, LogLimiter: r.logLimiter, Metrics: r.metrics.Servers,
	})
	return r, nil
}

// now is the relay's clock: nanoseconds since it was made.
func (r *Relay) now() int64 { return int64(time.Since(r.start)) }

// wall is the wall clock at a time of the relay's clock. It asks anew, since the wall clock may be set while the relay
// runs.
func (r *Relay) wall(at int64) time.Time { return time.Now().Add(time.Duration(at - r.now())) }

// unix is wall in seconds.
func (r *Relay) unix(now int64) uint32 { return uint32(r.wall(now).Unix()) }

// Run implements daemon.Task: it relays until ctx is done. Then it takes no more requests from its listeners, and
// relays the answers to those that it has sent.
func (r *Relay) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	answering, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	group.Go(func() error {
		<-ctx.Done()
		r.pending.Drain()
		stop()
		return nil
	})
	group.Go(func() error { return r.servers.Run(ctx) })
	group.Go(func() error { return links.Watch(ctx, r.linksChanged) })
	group.Go(func() error { return r.upstream.run(answering) })
	for _, q := range r.queues {
		group.Go(func() error {
			q.Run(ctx, r.now, q)
			return nil
		})
	}
	for _, l := range r.listeners {
		group.Go(func() error { return l.Run(ctx, answering.Done()) })
		group.Go(func() error { return l.report(ctx) })
	}
	return group.Wait()
}

// linksChanged has the listeners and the servers look at the links at once.
func (r *Relay) linksChanged() {
	for _, l := range r.listeners {
		l.Wake()
	}
	r.servers.Refresh()
}

// Ready implements daemon.Task: every listener is open, and there is a server to ask and an address to be answered
// at.
func (r *Relay) Ready() error {
	faults := []error{r.servers.Ready()}
	for _, l := range r.listeners {
		faults = append(faults, l.Ready())
	}
	if err := errors.Join(faults...); err != nil {
		return fmt.Errorf("DHCPv6: %w", err)
	}
	return nil
}

// String implements daemon.Task.
func (r *Relay) String() string { return "relay6" }
