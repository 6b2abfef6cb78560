package web

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/netip"
	"slices"

	"github.com/tinkerbell/stack/pkg/edge/host"
	"github.com/tinkerbell/stack/pkg/proxy/http1"
)

// Gate is what stands before a route's requests: limits, tokens, a rewritten path, hidden paths.
type Gate interface {
	// Wrap puts the gate before a handler. It passes the ResponseWriter on as it is.
	Wrap(next http.Handler) http.Handler
	Ready() error
	// PassesTarget returns a function that reports whether a GET of a target certainly passes: the engine may then skip
	// Wrap. Nil: every request goes through Wrap.
	PassesTarget() func(target []byte) bool
}

// Secure makes TLS of a connection to an endpoint.
type Secure interface {
	Client(ctx context.Context, conn net.Conn, protocols ...string) (*tls.Conn, error)
}

// Site is another route that shares the front's socket; its Hosts choose it. Of its settings, those that concern
// the socket and the reading of requests are the front's.
type Site struct {
	Route string
	Settings
}

// site is one route's part of a generation.
type site struct {
	route    string
	settings *Settings
	proxy    *proxy // nil where settings.Handler answers
	handler  http.Handler
	observer *observer
}

// newSites makes the parts of a generation; the first is the front's own route.
func (f *Front) newSites(s *Settings, old *generation) []*site {
	first, metrics := f.config.Route, f.metrics
	if s.Route != "" && s.Route != first {
		first, metrics = s.Route, f.config.Metrics.route(s.Route)
	}
	made := []*site{f.newSite(first, s, metrics, old)}
	for i := range s.Sites {
		one := &s.Sites[i]
		made = append(made, f.newSite(one.Route, &one.Settings, f.config.Metrics.route(one.Route), old))
	}
	return made
}

// newSite makes a route's part: the chain of its handlers. A request is observed (admitted, counted, recorded), brought
// to the strict grammar, refused if it is none of gRPC where the route is for that, goes through the gate, and gets to
// the backend or to the files. In front of that the server chooses the route by its host ([Front.choose]).
func (f *Front) newSite(route string, s *Settings, metrics *routeMetrics, old *generation) *site {
	made := &site{route: route, settings: s}
	log := f.config.Logger.With("route", route)
	next := s.Handler
	if next == nil {
		var before *transport
		if o := old.site(route); o != nil && o.proxy != nil && o.settings.GRPC == s.GRPC && o.settings.Dial == s.Dial &&
			o.settings.Response == s.Response && o.settings.Secure == s.Secure {
			before = o.proxy.transport // its connections to the endpoints serve on
		}
		made.proxy = newProxy(route, s, log, metrics, len(f.loops), before)
		next = made.proxy
	}
	if s.Gate != nil {
		next = s.Gate.Wrap(next)
	}
	if s.GRPC {
		next = onlyHTTP2(next)
		metrics.speaksGRPC()
	}
	made.observer = &observer{
		next: normalized(next), settings: s, log: log, metrics: metrics, account: f.config.Account.Route(route),
		lines: f.lines, route: route, port: f.Addr().Port(), sink: f.config.Sink,
	}
	made.handler = made.observer
	return made
}

// onlyHTTP2 refuses what cannot be gRPC, on a port that also speaks HTTP/1.1.
func onlyHTTP2(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor < 2 {
			if seen, ok := w.(*response); ok {
				seen.Refused("gRPC needs HTTP/2")
			}
			http.Error(w, "gRPC needs HTTP/2", http.StatusHTTPVersionNotSupported)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// choose returns the handler of all sites, and the mux that chooses among them, nil where there is one site for any
// host. A request that no site is for is counted and logged as the first one's.
func (f *Front) choose(sites []*site) (http.Handler, *host.Mux) {
	first := sites[0]
	// asFirst has next answer a request that no site serves.
	asFirst := func(w http.ResponseWriter, r *http.Request, next http.HandlerFunc) {
		first.observer.serve(normalized(next), w, r)
	}
	serve := func(chosen *site, w http.ResponseWriter, r *http.Request) {
		if holds, ends := chosen.holds(r); !holds {
			asFirst(w, r, func(w http.ResponseWriter, r *http.Request) { misdirected(w, r, ends) })
			return
		}
		chosen.handler.ServeHTTP(w, r)
	}
	onlyFirst := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { serve(first, w, r) })
	if len(sites) == 1 && len(first.settings.Hosts) == 0 {
		return onlyFirst, nil
	}
	hosts := make([]host.Hosts, len(sites))
	for i, s := range sites {
		hosts[i] = s.settings.Hosts
	}
	mux, err := host.New(hosts)
	if err != nil { // the routes file is checked for it
		f.log.Error("failed to share port", "error", err)
		return onlyFirst, nil
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if at := mux.Choose(r); at != host.None {
			serve(sites[at], w, r)
			return
		}
		asFirst(w, r, mux.Refuse)
	}), mux
}

// site finds a route's part; nil where there is none.
func (g *generation) site(route string) *site {
	if g == nil {
		return nil
	}
	for _, s := range g.sites {
		if s.route == route {
			return s
		}
	}
	return nil
}

// closeProxies lets go of the connections to endpoints, but for those that another generation serves on.
func (g *generation) closeProxies(next *generation) {
	for _, s := range g.sites {
		if s.proxy == nil {
			continue
		}
		if o := next.site(s.route); o != nil && o.proxy != nil && o.proxy.transport.shares(s.proxy.transport) {
			continue
		}
		s.proxy.transport.close()
	}
}

// any says whether a route of the socket is so.
func (s *Settings) any(is func(*Settings) bool) bool {
	return is(s) || slices.ContainsFunc(s.Sites, func(one Site) bool { return is(&one.Settings) })
}

func isGRPC(s *Settings) bool  { return s.GRPC }
func notGRPC(s *Settings) bool { return !s.GRPC }

// Client is who a request is from: the peer, or whom trusted peers name. It is what X-Real-IP tells the backend.
func Client(r *http.Request, trusted []netip.Prefix) netip.Addr {
	peer := peerOf(r)
	if !trusts(trusted, peer) {
		return peer
	}
	return realClient(append(parseChain(r.Header.Values(http1.ForwardedFor)), peer), trusted)
}
