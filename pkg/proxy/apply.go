package proxy

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/tinkerbell/stack/pkg/endpoint"
	"github.com/tinkerbell/stack/pkg/route"
)

// warmUp is how long a reload waits for the endpoints of a new backend before it puts the route in force without them.
const warmUp = 3 * time.Second

// change is the difference between the table in force and the next one.
type change struct {
	table  route.Table
	gates  map[string]*gate // those of the next table, by route
	pools  map[string]*pool // those of the next table: kept ones and new ones
	opened []*running       // at addresses without a front
	reopen []planned        // at addresses whose front cannot take its new settings
	update []planned
	closed []*running
}

// planned is the change of an open front.
type planned struct {
	old  *running
	next route.Route
}

// apply puts a table in force. It opens the new fronts first, and changes the open ones only if that succeeds.
func (p *Proxy) apply(t route.Table) error {
	gates, err := p.gatesFor(t)
	if err != nil {
		return err
	}
	c := change{table: t, gates: gates, pools: map[string]*pool{}}
	p.warmGates(gates)
	for _, r := range t.Routes {
		c.pools[r.Name] = p.poolFor(t, r)
	}
	p.await(c.pools)
	if err := p.prepare(&c, t); err != nil {
		for _, each := range c.opened {
			p.abandon(each)
		}
		p.stopPools(c.pools, p.pools)
		stopGates(c.gates, p.gates)
		return err
	}
	p.warn(t)
	p.commit(&c)
	return p.reopenAll(&c)
}

// warn logs the next table's pass-throughs, each once for as long as it is there.
func (p *Proxy) warn(t route.Table) {
	before := p.table.PassThroughs()
	for _, each := range t.PassThroughs() {
		if !slices.Contains(before, each) {
			p.log.Warn("pass-through to a backend of an HTTP route", "route", each.Route, "backend", each.Backend,
				"http_route", each.HTTP)
		}
	}
}

// poolFor returns a route's pool: the open one if its settings have not changed.
func (p *Proxy) poolFor(t route.Table, r route.Route) *pool {
	if r.Protocol == route.Files {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if old := p.pools[r.Name]; old != nil && samePool(old.route, r) && !p.entangled(old, t) {
		return old
	}
	config := p.poolConfig(t, r)
	if old := p.pools[r.Name]; old != nil {
		config.Before = old.Pool
	}
	next := &pool{route: r, Pool: endpoint.NewPool(config)}
	if p.life != nil {
		p.startPool(next)
	}
	return next
}

func samePool(a, b route.Route) bool {
	return a.Protocol.Network() == b.Protocol.Network() && reflect.DeepEqual(a.Backends, b.Backends)
}

// entangled reports whether the next table listens at the address of one of a pool's endpoints, or the pool has no
// endpoint, perhaps because the table in force listens at its address.
func (p *Proxy) entangled(old *pool, t route.Table) bool {
	self := p.self(t, old.route.Protocol.Network())
	return old.Ready() != nil ||
		slices.ContainsFunc(old.Status(), func(s endpoint.Status) bool { return self(s.Address) })
}

// await waits until new pools have endpoints, so that no connection finds an empty pool.
func (p *Proxy) await(pools map[string]*pool) {
	if p.life == nil {
		return
	}
	deadline := time.Now().Add(warmUp)
	for _, each := range pools {
		for each != nil && each.Ready() != nil && time.Now().Before(deadline) {
			time.Sleep(5 * time.Millisecond)
		}
	}
}

// prepare sorts the next table's addresses into new, kept and removed ones, and opens the new ones.
func (p *Proxy) prepare(c *change, t route.Table) error {
	var failures []error
	kept := map[string]bool{}
	for _, r := range t.Routes {
		for _, l := range r.Listen {
			key := r.Address(l)
			if first := sharing(t, key); kept[key] && r.Web() && first[0].Name != r.Name {
				continue // the first has the socket
			}
			kept[key] = true
			old := p.fronts[key]
			switch {
			case old == nil:
				next, err := p.openFront(c, r, l)
				if err != nil {
					failures = append(failures, err)
					continue
				}
				c.opened = append(c.opened, next)
			case updatable(old, r):
				c.update = append(c.update, planned{old, r})
			default:
				c.reopen = append(c.reopen, planned{old, r})
			}
		}
	}
	for key, old := range p.fronts {
		if !kept[key] {
			c.closed = append(c.closed, old)
		}
	}
	return errors.Join(failures...)
}

func (p *Proxy) openFront(c *change, r route.Route, l route.Listen) (*running, error) {
	f, err := p.listen(c, r, l)
	if err != nil {
		if !strings.Contains(err.Error(), "route "+r.Name) {
			err = fmt.Errorf("failed to listen for route %s on %s: %w", r.Name, r.Address(l), err)
		}
		return nil, err
	}
	return &running{front: f, route: r, listen: l, done: make(chan struct{})}, nil
}

// abandon closes a front that has not served.
func (p *Proxy) abandon(each *running) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_ = each.Serve(ctx)
}

// commit makes the next table the one in force.
func (p *Proxy) commit(c *change) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, r := range c.table.Routes {
		p.shapers.SetRate(r.Name, r.Limits.Rate.Bits())
	}
	for _, each := range c.update {
		p.updateFront(c, each.old, each.next)
		each.old.route = each.next
	}
	for _, each := range c.opened {
		p.fronts[each.route.Address(each.listen)] = each
		if p.life != nil {
			p.startFront(each)
		}
	}
	for _, each := range c.closed {
		p.log.Info("route closed", "route", each.route.Name, "address", each.route.Address(each.listen))
		delete(p.fronts, each.route.Address(each.listen))
		each.stop()
	}
	old := p.pools
	stopGates(p.gates, c.gates)
	p.pools, p.gates, p.table = map[string]*pool{}, c.gates, c.table
	for name, each := range c.pools {
		if each != nil {
			p.pools[name] = each
		}
	}
	p.stopPoolsLocked(old, p.pools)
}

// reopenAll ends fronts that cannot change in place and opens their successors at the same addresses, when the
// old ones have let go of them.
func (p *Proxy) reopenAll(c *change) error {
	var failures []error
	for _, each := range c.reopen {
		each.old.stop()
	}
	for _, each := range c.reopen {
		next, err := p.reopenOne(c, each)
		if err != nil {
			failures = append(failures, err)
			continue
		}
		p.mu.Lock()
		p.fronts[next.route.Address(next.listen)] = next
		p.startFront(next)
		p.mu.Unlock()
	}
	return errors.Join(failures...)
}

func (p *Proxy) reopenOne(c *change, each planned) (*running, error) {
	limit := time.Now().Add(each.old.route.Timeouts.Drain.D() + warmUp)
	for {
		next, err := p.openFront(c, each.next, each.old.listen)
		if err == nil || !errors.Is(err, syscall.EADDRINUSE) || time.Now().After(limit) {
			return next, err
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// stopPools ends the pools that are in one map and not in another.
func (p *Proxy) stopPools(some, others map[string]*pool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stopPoolsLocked(some, others)
}

func (p *Proxy) stopPoolsLocked(some, others map[string]*pool) {
	for name, each := range some {
		if each != nil && each != others[name] && each.stop != nil {
			each.stop()
		}
	}
}
