// Package relay is a DHCP relay agent for provisioning: it receives machines' requests on one or more VLANs, sends them
// to servers elsewhere, and brings the answers back.
//
//	listener (raw frames) ─► policy, gate ─► edit in place ─► UDP 67 ─► servers
//	listener (raw frames) ◄─ address ◄─ pending      ◄─ UDP 67 ◄─┘
//
// The same UDP socket serves clients and routers that address this host by unicast. docs/dhcp-relay.md has the reasons
// for which requests are dropped, with the RFCs' sections.
//
// There is one goroutine per socket, and none per packet; a batch of packets is received by one system call, edited
// where it lies and sent by another.
package relay

import (
	"context"
	"errors"
	"hash/maphash"
	"log/slog"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/tinkerbell/stack/internal/loglimit"
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
	queues     []*queue     // that of unicasts, those of the listeners, and agents
	agents     *queue       // of the trusted relay agents' unicasts; nil where none is trusted
	seed       maphash.Seed // of clients' tags: secret, so that no sender can choose its place in a table
	trace      *trace.Ring
	listeners  []*vlan
	upstream   *upstream
	// ofRouters and ofStrangers are values of option 82 (agentOfRouters, agentOfStrangers).
	ofRouters, ofStrangers []byte
	// switched tells that every listener is trusted to bring option 82, and so are the unicasts of the machines there.
	switched bool
	servers  *server.Pool
	start    time.Time
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
		config:     config,
		logger:     config.Logger,
		verbose:    config.Logger.Enabled(context.Background(), slog.LevelDebug),
		logLimiter: loglimit.New(config.Logger, 1, time.Minute),
		pending:    pending.New[key, origin](config.Pending, config.PendingExpiry, len(config.Servers)),
		limits:     admit.NewLimiter(config.ClientRate, config.TotalRate),
		start:      time.Now(),
		seed:       maphash.MakeSeed(),
	}
	r.ofRouters, r.ofStrangers = config.agentOfRouters(), config.agentOfStrangers()
	r.switched = len(config.Listeners) > 0 && len(config.TrustedListeners) == len(config.Listeners)
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
	if len(config.TrustedRelays) > 0 {
		r.agents = newQueue(r, unicast)
		r.queues = append(r.queues, r.agents)
	}
	for i, l := range config.Listeners {
		v, err := newVLAN(r, i, l)
		if err != nil {
			return nil, err
		}
		r.listeners = append(r.listeners, v)
	}
	r.servers = newServers(r)
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
	group.Go(func() error { return links.Watch(ctx, r.linksChanged) })
	group.Go(func() error { return r.upstream.run(answering) })
	for _, q := range r.queues {
		group.Go(func() error { return q.run(ctx) })
	}
	for _, l := range r.listeners {
		group.Go(func() error { return l.Run(ctx, answering.Done()) })
	}
	return group.Wait()
}

// linksChanged has the listeners and the servers look at the links at once. They do so every few seconds anyway.
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
	return errors.Join(faults...)
}

// String implements daemon.Task.
func (r *Relay) String() string { return "relay" }
