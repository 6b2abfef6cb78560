// Package proxy runs a table of routes: one front for every address of every route, one pool of endpoints for every
// route with a backend. A new table leaves unchanged routes untouched.
package proxy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tinkerbell/stack/pkg/endpoint"
	"github.com/tinkerbell/stack/pkg/endpoint/kube"
	"github.com/tinkerbell/stack/pkg/proxy/admission"
	"github.com/tinkerbell/stack/pkg/proxy/loop"
	"github.com/tinkerbell/stack/pkg/proxy/shaper"
	"github.com/tinkerbell/stack/pkg/proxy/web"
	"github.com/tinkerbell/stack/pkg/record"
	"github.com/tinkerbell/stack/pkg/route"
)

// Options make a [Proxy].
type Options struct {
	// Table is the first table.
	Table route.Table
	// Resolver looks up the backends; nil is one that reads /etc/resolv.conf.
	Resolver *endpoint.Resolver
	// Kube watches the backends that are Kubernetes Services; nil is one with the pod's service account.
	Kube *kube.Client
	// Addresses are the proxy's addresses besides those of its interfaces: those of the Service. A backend at one of
	// them, on a port that the proxy listens on, is a loop.
	Addresses []netip.Addr
	// CatchAnswers sets the rules that bring answers to machines' addresses to transparent tftp routes; see
	// [datagram.CatchAnswers].
	CatchAnswers bool
	// Account bounds the memory and descriptors of connections; nil does not. Container measures the container's memory;
	// nil is a container without a limit.
	Account   *admission.Account
	Container admission.Gauge
	// Sink gets what becomes of exchanges at the routes; nil does not.
	Sink record.Sink
	// Logger may be nil.
	Logger *slog.Logger
	// Registry may be nil.
	Registry prometheus.Registerer
}

// Proxy is a daemon.Task.
type Proxy struct {
	options Options
	log     *slog.Logger
	metrics *metrics
	loops   *loop.Group
	shapers *shaper.Group // of the routes' rates
	reloads chan reload

	mu     sync.Mutex
	table  route.Table
	pools  map[string]*pool    // by route
	gates  map[string]*gate    // by route
	fronts map[string]*running // by network and address
	group  sync.WaitGroup      // of fronts and pools
	life   context.Context     // nil before Run
	failed chan error
}

// pool is a route's backend while it runs.
type pool struct {
	*endpoint.Pool
	route route.Route
	stop  context.CancelFunc
}

// running is an open front.
type running struct {
	front
	route  route.Route
	listen route.Listen
	stop   context.CancelFunc
	done   chan struct{}
}

// New binds every route's sockets. The error names each that cannot be bound.
func New(o Options) (*Proxy, error) {
	o.Resolver = cmp.Or(o.Resolver, &endpoint.Resolver{})
	if o.Kube == nil {
		o.Kube = &kube.Client{}
	}
	p := &Proxy{
		options: o,
		log:     cmp.Or(o.Logger, slog.New(slog.DiscardHandler)),
		loops:   loop.NewGroup(0),
		shapers: shaper.NewGroup(),
		reloads: make(chan reload),
		pools:   map[string]*pool{},
		fronts:  map[string]*running{},
		failed:  make(chan error, 1),
	}
	p.metrics = newMetrics(o.Registry, p)
	if err := p.apply(o.Table); err != nil {
		return nil, err
	}
	return p, nil
}

// Run serves until ctx is done, then drains.
func (p *Proxy) Run(ctx context.Context) error {
	life, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	p.mu.Lock()
	p.life = life
	p.group.Go(func() {
		if err := p.loops.Run(life); err != nil {
			p.fail(err)
		}
	})
	p.group.Go(func() { p.options.Account.Run(life, p.options.Container) })
	for _, each := range p.pools {
		p.startPool(each)
	}
	p.startGates(p.gates)
	for _, each := range p.fronts {
		p.startFront(each)
	}
	p.mu.Unlock()

	err := p.follow(ctx)
	p.log.Info("stopped taking connections", "open", p.open())
	p.mu.Lock()
	for _, each := range p.fronts {
		each.stop()
	}
	fronts := slices.Collect(maps.Values(p.fronts))
	p.mu.Unlock()
	// The pools and loops run until the last connection has ended: until then a request may need an endpoint.
	for _, each := range fronts {
		<-each.done
	}
	cancel()
	p.group.Wait()
	p.log.Info("drained")
	return err
}

// Leave has the clients of HTTP fronts take their next requests elsewhere, some time before the end of Run.
func (p *Proxy) Leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, each := range p.fronts {
		if f, ok := each.front.(*web.Front); ok {
			f.Leave()
		}
	}
}

// follow takes new tables until ctx is done or a front fails.
func (p *Proxy) follow(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-p.failed:
			return err
		case r := <-p.reloads:
			r.done <- p.apply(r.table)
		}
	}
}

type reload struct {
	table route.Table
	done  chan error
}

// Apply puts another table in force. It does not touch unchanged routes. If it returns an error, nothing has changed.
func (p *Proxy) Apply(ctx context.Context, t route.Table) error {
	r := reload{table: t, done: make(chan error, 1)}
	select {
	case p.reloads <- r:
	case <-ctx.Done():
		return ctx.Err()
	}
	return <-r.done
}

// Ready is nil if every route that is not optional can serve now. The error names those that cannot.
func (p *Proxy) Ready() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.life == nil {
		return errors.New("not started yet")
	}
	var reasons []error
	for _, r := range p.table.Routes {
		if err := p.routeReady(r); err != nil && !r.Optional {
			reasons = append(reasons, fmt.Errorf("route %s: %w", r.Name, err))
		}
	}
	return errors.Join(reasons...)
}

// routeReady is nil if a route serves at all its addresses; other routes at these addresses do not matter. The caller
// holds mu.
func (p *Proxy) routeReady(r route.Route) error {
	for _, l := range r.Listen {
		f := p.fronts[r.Address(l)]
		if f == nil {
			return errors.New("not listening")
		}
		var err error
		if shared, ok := f.front.(*web.Front); ok {
			err = shared.ReadyFor(r.Name)
		} else {
			err = f.Ready()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// DrainTime is how long a drain takes at most, with the table that is in force.
func (p *Proxy) DrainTime() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	longest := time.Duration(0)
	for _, r := range p.table.Routes {
		longest = max(longest, r.Timeouts.Drain.D())
	}
	return longest
}

// String implements daemon.Task.
func (p *Proxy) String() string { return "routes" }

// open is the number of connections or sessions of each route, for the log.
func (p *Proxy) open() map[string]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	open := map[string]int{}
	for _, each := range p.fronts {
		if n := each.Active(); n > 0 {
			open[each.route.Name] += n
		}
	}
	return open
}

// startPool runs a pool. The caller holds mu.
func (p *Proxy) startPool(each *pool) {
	ctx, cancel := context.WithCancel(p.life)
	each.stop = cancel
	p.group.Go(func() { _ = each.Run(ctx) })
}

// startFront runs a front. The caller holds mu.
func (p *Proxy) startFront(each *running) {
	ctx, cancel := context.WithCancel(p.life)
	each.stop = cancel
	p.log.Info("listening", "route", each.route.Name, "address", each.route.Address(each.listen),
		"protocol", each.route.Protocol, "backends", each.route.Backends)
	p.group.Go(func() {
		defer close(each.done)
		if err := each.Serve(ctx); err != nil {
			p.fail(err)
		}
	})
}

// fail ends Run with an error; the first one counts.
func (p *Proxy) fail(err error) {
	select {
	case p.failed <- err:
	default:
	}
}

// self reports whether an endpoint of a route has an address of this proxy.
func (p *Proxy) self(t route.Table, network string) func(netip.AddrPort) bool {
	var listening []netip.AddrPort
	for _, r := range t.Routes {
		if r.Protocol.Network() != network {
			continue
		}
		for _, l := range r.Listen {
			listening = append(listening, l.AddrPort())
		}
	}
	return func(endpoint netip.AddrPort) bool {
		return slices.ContainsFunc(listening, func(l netip.AddrPort) bool {
			if l.Port() != endpoint.Port() {
				return false
			}
			if l.Addr().IsValid() && !l.Addr().IsUnspecified() && l.Addr() == endpoint.Addr() {
				return true
			}
			if slices.Contains(p.options.Addresses, endpoint.Addr()) {
				return true
			}
			return (!l.Addr().IsValid() || l.Addr().IsUnspecified()) && local(endpoint.Addr())
		})
	}
}

// local reports whether an address is one of this network namespace.
func local(addr netip.Addr) bool {
	if addr.IsLoopback() || addr.IsUnspecified() {
		return true
	}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return false
	}
	return slices.ContainsFunc(addrs, func(a net.Addr) bool {
		prefix, err := netip.ParsePrefix(a.String())
		return err == nil && prefix.Addr().Unmap() == addr
	})
}
