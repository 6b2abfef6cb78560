package proxy

import (
	"context"
	"errors"
	"net/http"
	"net/netip"
	"reflect"
	"slices"
	"time"

	"github.com/tinkerbell/stack/pkg/edge"
	"github.com/tinkerbell/stack/pkg/proxy/web"
	"github.com/tinkerbell/stack/pkg/route"
)

// gate is the gate of a route in force.
type gate struct {
	*edge.Gate
	config  edge.Config
	trusted []netip.Prefix
	stop    context.CancelFunc
}

// gatesFor makes the gates of a table's routes. It keeps a gate, with its counts, keys and certificates, if its
// settings have not changed.
func (p *Proxy) gatesFor(t route.Table) (map[string]*gate, error) {
	gates := map[string]*gate{}
	var faults []error
	for _, r := range t.Routes {
		config := r.Edge()
		bare := config
		bare.Hosts = nil
		if !r.Web() || reflect.ValueOf(bare).IsZero() {
			continue
		}
		if old := p.gates[r.Name]; old != nil && reflect.DeepEqual(old.config, config) &&
			reflect.DeepEqual(old.trusted, r.TrustedPrefixes) {
			gates[r.Name] = old
			continue
		}
		var before *edge.Gate
		if old := p.gates[r.Name]; old != nil {
			before = old.Gate
		}
		made, err := edge.New(config, edge.Options{
			Before: before,
			Route:  r.Name, Logger: p.log, Metrics: p.metrics.edge, Protocols: protocols(r),
			Client: func(req *http.Request) netip.Addr { return web.Client(req, r.TrustedPrefixes) },
		})
		if err != nil {
			faults = append(faults, err)
			continue
		}
		gates[r.Name] = &gate{Gate: made, config: config, trusted: r.TrustedPrefixes}
	}
	return gates, errors.Join(faults...)
}

// protocols are those that a route's TLS offers by ALPN, the best first. A file over HTTP/2 costs more than twice the
// processor time, so files are offered over HTTP/1.1 first.
func protocols(r route.Route) []string {
	if r.Protocol == route.Files {
		return []string{"http/1.1", "h2"}
	}
	return []string{"h2", "http/1.1"}
}

// warmGates runs new gates before they are in force, so that no request finds a gate without keys.
func (p *Proxy) warmGates(gates map[string]*gate) {
	if p.life == nil {
		return
	}
	p.mu.Lock()
	p.startGates(gates)
	p.mu.Unlock()
	deadline := time.Now().Add(warmUp)
	for _, each := range gates {
		for each.Ready() != nil && time.Now().Before(deadline) {
			time.Sleep(5 * time.Millisecond)
		}
	}
}

// startGates runs those that do not run yet. The caller holds mu.
func (p *Proxy) startGates(gates map[string]*gate) {
	for _, each := range gates {
		if each.stop != nil {
			continue
		}
		ctx, cancel := context.WithCancel(p.life)
		each.stop = cancel
		p.group.Go(func() { _ = each.Run(ctx) })
	}
}

// stopGates ends the gates that are in one map and not in another.
func stopGates(some, others map[string]*gate) {
	for name, each := range some {
		if each != others[name] && each.stop != nil {
			each.stop()
		}
	}
}

// sharing are the routes of a table that speak HTTP at an address, in its order. The first has the socket.
func sharing(t route.Table, key string) []route.Route {
	var all []route.Route
	for _, r := range t.Routes {
		for _, l := range r.Listen {
			if r.Web() && r.Address(l) == key {
				all = append(all, r)
			}
		}
	}
	return all
}

// settingsAt are the settings of the front at an address: those of the route that has the socket, with those that
// share it as sites. old is the front that is there; nil is none.
func (p *Proxy) settingsAt(c *change, key string, old *running) (settings web.Settings) {
	for i, r := range sharing(c.table, key) {
		s := p.webSettings(c.table, r, c.pools[r.Name])
		if f, ok := oldFront(old); ok && r.Protocol == route.Files && sameFiles(p.table, c.table, r) {
			if handler, ready := f.Handler(r.Name); handler != nil {
				s.Handler, s.Ready = handler, ready // the same files: nothing to open again
			}
		}
		s.Hosts = r.Hosts
		if g := c.gates[r.Name]; g != nil {
			s.Gate, s.TLS = g.Gate, g.TLS()
			if trust := g.Trust(); trust != nil {
				s.Secure = trust
			}
		}
		if i == 0 {
			settings, settings.Route = s, r.Name
		} else {
			settings.Sites = append(settings.Sites, web.Site{Route: r.Name, Settings: s})
		}
	}
	return settings
}

func oldFront(old *running) (*web.Front, bool) {
	if old == nil {
		return nil, false
	}
	f, ok := old.front.(*web.Front)
	return f, ok
}

// sameFiles reports whether a route serves the same files, by the same names, as in the former table.
func sameFiles(before, next route.Table, r route.Route) bool {
	for _, old := range before.Routes {
		if old.Name == r.Name {
			return old.Protocol == r.Protocol && old.Files == r.Files &&
				slices.Equal(bootPaths(before, old), bootPaths(next, r))
		}
	}
	return false
}
