package endpoint

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// ErrNone says that a pool has no endpoint at all. Every error of Ready, Pick and Acquire wraps it, with the reason.
var ErrNone = errors.New("no endpoint")

// ErrLoop says that an endpoint is the proxy itself.
var ErrLoop = errors.New("endpoint is the proxy itself")

// Config makes a [Pool].
type Config struct {
	// Route names the pool in logs and metrics.
	Route string
	// Sources say where the endpoints are; without any, [Pool.Set] does.
	Sources []Source
	// ByClient has a client meet the same endpoint while that is offered, in every replica (Maglev); else they are
	// chosen in turn.
	ByClient bool
	// Before is the pool that this one replaces, or nil. The endpoints that its sources have found stay until the sources
	// answer again: a reload must not lose them while the name server is away.
	Before *Pool
	// Self is true for the proxy's own listening addresses; nil where there are none.
	Self func(netip.AddrPort) bool
	// Logger may be nil. It is used under the pool's lock, and must not block.
	Logger *slog.Logger
	// Metrics may be nil.
	Metrics *Metrics
}

// Pool is the backend of one route. Its methods are safe for concurrent use.
type Pool struct {
	config  Config
	log     *slog.Logger
	metrics *routeMetrics
	refresh []chan struct{}
	next    atomic.Uint64 // of round robin
	view    atomic.Pointer[view]

	mu        sync.Mutex
	answers   []answered                   // one for each source
	endpoints map[netip.AddrPort]*Endpoint // those of the current answers
	desperate bool                         // offering endpoints although none is healthy
}

type answered struct {
	members []Member
	err     error
	once    bool // an answer, good or bad, has come
}

// NewPool makes a pool. It knows the endpoints of fixed sources at once, the others once [Pool.Run] has asked.
func NewPool(c Config) *Pool {
	p := &Pool{
		config:    c,
		log:       cmp.Or(c.Logger, slog.New(slog.DiscardHandler)),
		metrics:   c.Metrics.route(c.Route),
		answers:   make([]answered, len(c.Sources)),
		refresh:   make([]chan struct{}, len(c.Sources)),
		endpoints: map[netip.AddrPort]*Endpoint{},
	}
	p.next.Store(jitter)
	p.view.Store(&view{})
	if c.Before != nil {
		p.inherit(c.Before)
		p.config.Before = nil // else all former pools would stay in memory
	}
	for i, source := range c.Sources {
		p.refresh[i] = make(chan struct{}, 1)
		if f, ok := source.(fixed); ok {
			f.Watch(context.Background(), nil, func(m []Member, err error) { p.update(i, m, err) })
		}
	}
	return p
}

// inherit takes over the answers of the former pool's sources of the same name.
func (p *Pool) inherit(before *Pool) {
	known := map[string][]Member{}
	before.mu.Lock()
	for i, a := range before.answers {
		known[before.config.Sources[i].String()] = a.members
	}
	before.mu.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, source := range p.config.Sources {
		if _, ok := source.(fixed); !ok {
			p.answers[i].members = p.sensible(source.String(), known[source.String()])
		}
	}
	p.rebuild()
}

// Run follows the sources until ctx is done.
func (p *Pool) Run(ctx context.Context) error {
	var watching sync.WaitGroup
	for i, source := range p.config.Sources {
		if _, ok := source.(fixed); ok {
			continue
		}
		watching.Go(func() {
			source.Watch(ctx, p.refresh[i], func(m []Member, err error) { p.update(i, m, err) })
		})
	}
	select {
	case <-ctx.Done():
	case <-time.After(firstAnswer):
		p.sayAwaited()
	}
	watching.Wait()
	<-ctx.Done()
	return nil
}

// firstAnswer is how long a source may take for its first answer without a word: a name server that is not there takes
// many seconds to fail.
const firstAnswer = 500 * time.Millisecond

// sayAwaited logs the sources that have neither an answer nor one of the former pool.
func (p *Pool) sayAwaited() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, a := range p.answers {
		if !a.once && len(a.members) == 0 {
			p.log.Warn("backend is not found yet, still asking", "backend", p.config.Sources[i])
		}
	}
}

// Ready is nil if there is an endpoint, healthy or not.
func (p *Pool) Ready() error {
	if len(p.view.Load().all) > 0 {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	var reasons []error
	for i, source := range p.config.Sources {
		switch a := p.answers[i]; {
		case a.err != nil:
			reasons = append(reasons, fmt.Errorf("backend %s: %w", source, noneFor{a.err}))
		case !a.once:
			reasons = append(reasons, fmt.Errorf("backend %s: %w", source, noneFor{errNotLookedUp}))
		default:
			reasons = append(reasons, fmt.Errorf("backend %s: %w", source, ErrNone))
		}
	}
	if len(reasons) == 0 {
		return ErrNone
	}
	return errors.Join(reasons...)
}

var errNotLookedUp = errors.New("not looked up yet")

// noneFor is [ErrNone] for a reason, with the reason's text.
type noneFor struct{ error }

func (n noneFor) Unwrap() []error { return []error{ErrNone, n.error} }

// Pick returns the address of the endpoint that serves a client. Datagram fronts use it.
func (p *Pool) Pick(client netip.Addr) (netip.AddrPort, error) {
	e, err := p.choose(client, nil)
	if err != nil {
		return netip.AddrPort{}, err
	}
	e.used.Add(1)
	return e.Addr, nil
}

// Report reports success (nil) or failure of an endpoint that [Pool.Pick] returned.
func (p *Pool) Report(addr netip.AddrPort, err error) {
	for _, e := range p.view.Load().all {
		switch {
		case e.Addr != addr:
		case err != nil:
			e.Failed(err)
		default:
			e.Succeeded()
		}
	}
}

// Acquire returns the endpoint that serves a client, other than those that were tried already, and counts it as
// in use until its [Endpoint.Release].
func (p *Pool) Acquire(client netip.Addr, tried ...*Endpoint) (*Endpoint, error) {
	e, err := p.choose(client, tried)
	if err != nil {
		return nil, err
	}
	e.active.Add(1)
	e.used.Add(1)
	return e, nil
}

// update takes a source's answer.
func (p *Pool) update(source int, members []Member, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	a := &p.answers[source]
	name := p.config.Sources[source].String()
	p.metrics.lookups.Count(err)
	switch {
	case err == nil && a.err != nil:
		p.log.Info("backend found again", "backend", name)
	case err != nil && (a.err == nil || !a.once):
		p.log.Warn("backend lookup failed", "backend", name, "error", err, "kept_endpoints", len(a.members))
	}
	a.once, a.err = true, err
	if err != nil {
		return // the last answer holds
	}
	a.members = p.sensible(name, members)
	if len(a.members) == 0 && len(members) > 0 {
		a.err = ErrLoop
	}
	p.rebuild()
}

// Set says where the endpoints of a pool without sources are, and whether a client meets the same one while it is
// offered.
func (p *Pool) Set(members []Member, byClient bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.config.ByClient = byClient
	p.answers = []answered{{members: p.sensible(p.config.Route, members)}}
	p.rebuild()
}

// sensible leaves out the proxy's own addresses, and the addresses of a family that the pod has no route to, unless
// there are no others.
func (p *Pool) sensible(source string, members []Member) []Member {
	var kept, reachable []Member
	for _, m := range members {
		if p.config.Self != nil && p.config.Self(m.Addr) {
			p.log.Error("backend is the proxy itself", "backend", source, "endpoint", m.Addr)
			continue
		}
		kept = append(kept, m)
		if routed(m.Addr) {
			reachable = append(reachable, m)
		}
	}
	if len(reachable) > 0 {
		return reachable
	}
	return kept
}

// routed asks the kernel whether it has a route: connecting a UDP socket sends nothing.
func routed(addr netip.AddrPort) bool {
	conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(addr))
	if err != nil {
		return false
	}
	_ = conn.Close()
	return true
}

// rebuild makes the view anew after any change. The caller holds mu.
func (p *Pool) rebuild() {
	current := map[netip.AddrPort]*Endpoint{}
	for _, a := range p.answers {
		for _, m := range a.members {
			e := p.endpoints[m.Addr]
			if e == nil {
				e = &Endpoint{Addr: m.Addr, pool: p}
				p.log.Info("endpoint added", "endpoint", m.Addr)
			}
			e.member = m
			current[m.Addr] = e
			p.endpoints[m.Addr] = e
		}
	}
	all := make([]*Endpoint, 0, len(current))
	for addr, e := range p.endpoints {
		if current[addr] == nil {
			p.log.Info("endpoint removed", "endpoint", addr)
			delete(p.endpoints, addr)
			e.forgive()
			continue
		}
		all = append(all, e)
	}
	slices.SortFunc(all, func(a, b *Endpoint) int { return a.Addr.Compare(b.Addr) })
	next := &view{all: all, usable: offered(all)}
	if len(next.usable) == 0 && len(all) > 0 {
		next.usable = all
	}
	if p.config.ByClient {
		next.table = maglevTable(next.usable)
	}
	p.view.Store(next)
	p.say(all)
}

// offered returns the healthy endpoints, and their fallback where there are none.
func offered(all []*Endpoint) (usable []*Endpoint) {
	for _, fallback := range []bool{false, true} {
		for _, e := range all {
			if !e.ejected && e.member.Fallback == fallback {
				usable = append(usable, e)
			}
		}
		if len(usable) > 0 {
			break
		}
	}
	return usable
}

// say logs when the pool begins and ends to offer endpoints that are not healthy.
func (p *Pool) say(all []*Endpoint) {
	healthy := 0
	for _, e := range all {
		if !e.ejected {
			healthy++
		}
	}
	p.metrics.endpoints(healthy, len(all)-healthy)
	desperate := healthy == 0 && len(all) > 0
	if desperate == p.desperate {
		return
	}
	p.desperate = desperate
	if desperate {
		p.log.Warn("no endpoint is healthy, trying them all the same", "endpoints", len(all))
		return
	}
	p.log.Info("an endpoint is healthy again", "endpoints", len(all))
}

// look asks the sources to look again, because an endpoint did not answer.
func (p *Pool) look() {
	for _, refresh := range p.refresh {
		select {
		case refresh <- struct{}{}:
		default:
		}
	}
}

// Status is one endpoint as the admin page shows it.
type Status struct {
	Address  netip.AddrPort `json:"address"`
	Health   string         `json:"health"`
	Reason   string         `json:"reason,omitempty"`
	Fallback bool           `json:"fallback,omitempty"`
	Active   int64          `json:"active"`
	Used     uint64         `json:"used"`
	Failures uint64         `json:"failures"`
	Until    *time.Time     `json:"ejectedUntil,omitempty"`
}

// Status tells the endpoints' state.
func (p *Pool) Status() []Status {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []Status
	for _, e := range p.view.Load().all {
		all = append(all, e.status())
	}
	return all
}
