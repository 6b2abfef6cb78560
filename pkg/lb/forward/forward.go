// Package forward has the listeners of Services in mode proxy: the proxy's own TCP and UDP fronts, at addresses that
// this node may have or not, with pools that follow the Services' EndpointSlices.
package forward

import (
	"context"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	core "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/tinkerbell/stack/pkg/endpoint"
	"github.com/tinkerbell/stack/pkg/lb/reason"
	"github.com/tinkerbell/stack/pkg/lb/service"
	"github.com/tinkerbell/stack/pkg/proxy/admission"
	"github.com/tinkerbell/stack/pkg/proxy/loop"
	"github.com/tinkerbell/stack/pkg/proxy/tcp"
	"github.com/tinkerbell/stack/pkg/proxy/udp"
)

// Options make a [Manager].
type Options struct {
	// Bounds are those of TCP connections.
	Bounds Bounds
	// Changed is told of an address whose [Manager.Fault] may have changed. It must not call the manager.
	Changed    func(netip.Addr)
	Logger     *slog.Logger
	Registerer prometheus.Registerer
}

// Bounds are what TCP connections may take; the zero Bounds let them take everything.
type Bounds struct {
	// Account bounds the memory and descriptors of the connections of all listeners; nil does not. Container measures the
	// memory; nil is a container without a limit.
	Account   *admission.Account
	Container admission.Gauge
}

// State is what the listeners are to be.
type State struct {
	Plan service.Plan
	// Slices are the EndpointSlices of a Service.
	Slices func(*core.Service) []*discovery.EndpointSlice
	// Node is this one's name.
	Node string
}

// Manager opens, changes and closes the listeners of one node. Its methods are safe for concurrent use.
type Manager struct {
	o     Options
	log   *slog.Logger
	pools *endpoint.Metrics
	tcp   *tcp.Metrics
	udp   *udp.Metrics
	life  context.Context
	end   context.CancelFunc
	group sync.WaitGroup
	begin sync.Once
	loops *loop.Group

	mu    sync.Mutex
	state State
	ports map[string]*port // by route
}

// New makes a manager, which does nothing before Set. Close has to follow.
func New(o Options) *Manager {
	m := &Manager{
		o: o, log: o.Logger, ports: map[string]*port{}, loops: loop.NewGroup(0),
		pools: endpoint.NewMetrics(o.Registerer), tcp: tcp.NewMetrics(o.Registerer), udp: udp.NewMetrics(o.Registerer),
	}
	if o.Bounds.Account != nil {
		o.Registerer.MustRegister(o.Bounds.Account)
	}
	m.life, m.end = context.WithCancel(context.Background())
	return m
}

// Close ends all connections and listeners, and waits for that.
func (m *Manager) Close() {
	m.Set(State{})
	m.end()
	m.group.Wait()
}

// Set has listeners for a state: it opens those that are new, closes those that are not in it, and changes the others
// while their connections go on. It must not be called after Close.
func (m *Manager) Set(s State) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.state = s
	want := map[string]service.Listener{}
	for _, l := range s.Plan.Listeners() {
		want[l.String()] = l
	}
	if len(want) > 0 {
		m.begin.Do(m.start)
	}
	for route, p := range m.ports {
		if _, ok := want[route]; !ok {
			m.remove(p)
			m.o.Changed(p.want.IP)
		}
	}
	for route, l := range want {
		if p := m.ports[route]; p != nil {
			m.update(p, l)
			continue
		}
		p := m.newPort(l)
		m.ports[route] = p
		m.open(p)
		m.o.Changed(l.IP)
	}
}

// start begins what listeners need. A node without a Service in mode proxy goes without.
func (m *Manager) start() {
	m.group.Go(m.tend)
	m.group.Go(func() { m.o.Bounds.Account.Run(m.life, m.o.Bounds.Container) })
	m.group.Go(func() {
		if err := m.loops.Run(m.life); err != nil {
			m.log.Error("failed to wait for connections", "error", err)
		}
	})
}

// Refresh has the listeners of one Service look at its EndpointSlices again.
func (m *Manager) Refresh(name types.NamespacedName) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, p := range m.ports {
		if service.NameOf(p.want.Service) == name {
			m.feed(p)
		}
	}
}

// Fault says why this node cannot forward what is sent to an address; nil if it can, or has nothing to forward there.
func (m *Manager) Fault(ip netip.Addr) *reason.Error {
	m.mu.Lock()
	defer m.mu.Unlock()
	var first *port // always the same one of several
	for _, p := range m.ports {
		if p.want.IP == ip && p.fault != nil && (first == nil || p.route < first.route) {
			first = p
		}
	}
	if first == nil {
		return nil
	}
	return first.fault
}

// Cut ends the connections and sessions at an address, which another node is about to have: what their clients send
// does not come here any more. The listeners stay for the next time.
func (m *Manager) Cut(ip netip.Addr) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, p := range m.ports {
		switch {
		case p.want.IP != ip:
		case p.datagrams != nil:
			p.datagrams.CloseTo(func(netip.AddrPort) bool { return true })
		case p.stream != nil && p.stream.Active() > 0:
			p.shut()
			m.open(p)
		}
	}
}

// tryEvery is how often a listener that could not be opened is tried again.
const tryEvery = time.Second

// tend opens again what could not be opened.
func (m *Manager) tend() {
	ticker := time.NewTicker(tryEvery)
	defer ticker.Stop()
	for {
		select {
		case <-m.life.Done():
			return
		case <-ticker.C:
		}
		m.mu.Lock()
		for _, p := range m.ports {
			if before := p.fault; p.done == nil {
				if m.open(p); before != p.fault {
					m.o.Changed(p.want.IP)
				}
			}
		}
		m.mu.Unlock()
	}
}
