// Package relay is a DHCP relay agent for provisioning: it receives machines' requests on one or more VLANs, sends them
// to servers elsewhere, and brings the answers back. docs/design/architecture.md follows a request through the files.
//
// The same UDP socket serves clients and relay agents that address this host by unicast. docs/reference/dhcp-relay.md
// has the reasons for which requests are dropped, with the RFCs' sections. A relay is for one [family]: what a message
// is, where it goes and what is added stands in v4*.go and v6*.go, and what a relay is in the other files.
//
// There is one goroutine per socket, and none per packet; a batch of packets is received by one system call, edited
// where it lies and sent by another.
package relay

//go:generate go test . -count=1 -run ^TestDocumentAgreesWithCode$ -update

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
	"github.com/tinkerbell/stack/pkg/relay/pending"
	"github.com/tinkerbell/stack/pkg/relay/server"
	"github.com/tinkerbell/stack/pkg/relay/socket"
	"github.com/tinkerbell/stack/pkg/relay/trace"
)

// Relay is a daemon.Task.
type Relay struct {
	config     Config
	family     family
	v4         *v4 // of DHCPv4
	*traits        // of the family: serverPort, headroom, replyByte and the like
	logger     *slog.Logger
	verbose    bool // transactions are logged
	metrics    *metrics
	logLimiter *loglimit.Limiter
	pending    *pending.Table[key, origin]
	limits     *admit.Limiter
	gates      []*admit.Gate // of the listeners
	agents     *admit.Gate   // of the trusted relay agents' unicasts; nil where none is trusted
	unicasts   *admit.Gate   // of all other unicasts
	seed       maphash.Seed  // of clients' tags: secret, so that no sender can choose its place in a table
	trace      *trace.Ring
	vlans      []*vlan
	upstream   *upstream
	servers    *server.Pool
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
	r := &Relay{
		config:  config,
		logger:  config.Logger,
		pending: pending.New[key, origin](config.Pending, config.PendingExpiry, len(config.Servers)),
		limits:  admit.NewLimiter(config.ClientRate, config.TotalRate),
		start:   time.Now(),
		seed:    maphash.MakeSeed(),
	}
	if config.IPv6 {
		r.logger = r.logger.With("family", "ipv6")
		r.family = newV6(&config)
	} else {
		r.v4 = newV4(&config)
		r.family = r.v4
	}
	r.traits = r.family.traits()
	r.verbose = r.logger.Enabled(context.Background(), slog.LevelDebug)
	r.logLimiter = loglimit.New(r.logger, 1, time.Minute)
	r.trace = trace.New(config.TracePackets, trace.Protocol{Wall: r.wall, Blank: r.family.blank})
	r.metrics = newMetrics(&config, r.traits, func() float64 { return float64(r.pending.Sweep(r.now())) })
	r.targets.Store(&server.Targets{})
	for range config.Listeners {
		r.gates = append(r.gates, admit.NewGate(config.NewcomerRate, r.limits))
	}
	r.unicasts = admit.NewGate(config.NewcomerRate, r.limits)
	if len(config.TrustedRelays) > 0 && !config.IPv6 { // of DHCPv6 only relay agents send unicasts
		r.agents = admit.NewGate(config.NewcomerRate, r.limits)
	}
	for i := range config.Listeners {
		v, err := newVLAN(r, i)
		if err != nil {
			return nil, err
		}
		r.vlans = append(r.vlans, v)
	}
	r.servers = server.New(server.Config{
		Names: config.Servers, Port: r.serverPort, IPv6: config.IPv6,
		Interface: config.UpstreamInterface, Address: config.UpstreamAddress,
		ResolveInterval: config.ResolveInterval, Lookup: config.Lookup, DeadAfter: config.DeadAfter,
		NoName: endpoint.ErrNotFound, Optional: config.ServersOptional,
		Clock: r.now, Wall: r.wall, Publish: r.targets.Store,
		Logger: r.logger, LogLimiter: r.logLimiter, Metrics: r.metrics.servers,
	})
	return r, nil
}

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
	group.Go(func() error { return socket.WatchLinks(ctx, func([]byte) { r.linksChanged() }) })
	group.Go(func() error { return r.upstream.run(answering) })
	for _, v := range r.vlans {
		group.Go(func() error { return v.Run(ctx, answering.Done()) })
		if r.config.IPv6 {
			group.Go(func() error { return v.report(ctx) })
		}
	}
	return group.Wait()
}

// linksChanged has the listeners and the servers look at the links at once. They do so every few seconds anyway.
func (r *Relay) linksChanged() {
	for _, v := range r.vlans {
		v.Wake()
	}
	r.servers.Refresh()
}

// Ready implements daemon.Task: every listener is open, and there is a server to ask and an address to be answered
// at.
func (r *Relay) Ready() error {
	faults := []error{r.servers.Ready()}
	for _, v := range r.vlans {
		faults = append(faults, v.Ready())
	}
	err := errors.Join(faults...)
	if err != nil && r.config.IPv6 {
		return fmt.Errorf("DHCPv6: %w", err)
	}
	return err
}

// String implements daemon.Task.
func (r *Relay) String() string { return r.task }

// Trace is the last packets.
func (r *Relay) Trace() *trace.Ring { return r.trace }

// nameOf is a listener's name, also for the log.
func (r *Relay) nameOf(listener int16) string {
	if listener == unicast {
		return unicastLabel
	}
	return r.config.Listeners[listener].Name
}

// now is the relay's clock: nanoseconds since it was made.
func (r *Relay) now() int64 { return int64(time.Since(r.start)) }

// wall is the wall clock at a time of the relay's clock. It asks anew, since the wall clock may be set while the relay
// runs: machines often start before they know the time.
func (r *Relay) wall(at int64) time.Time { return time.Now().Add(time.Duration(at - r.now())) }

// unix is wall in seconds.
func (r *Relay) unix(now int64) uint32 { return uint32(r.wall(now).Unix()) }
