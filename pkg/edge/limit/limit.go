// Package limit refuses the request that is one too many: by rate and by number at a time, by client and in total.
// Connections are limited by the fronts that take them.
//
// Its tables are bounded and forget whoever is quiet. A client is an IPv4 address, or an IPv6 /64, which is what one
// customer has.
package limit

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"github.com/tinkerbell/stack/pkg/edge/reply"
)

// Config says how much is enough. What is 0 is not limited.
type Config struct {
	// Preset fills what is not set: "files" is what the file path of a Tinkerbell ingress has, 500 requests
	// a second and 70 at a time for each client.
	Preset              string `json:"preset,omitempty" form:"^(|files)$" desc:"files: 500/s with bursts of 2500, and 70 at a time, for each client"`
	Total               Rate   `json:"total,omitzero" desc:"rate of all clients"`
	PerClient           Rate   `json:"perClient,omitzero" desc:"rate of one client (IPv6: a /64)"`
	Concurrent          int    `json:"concurrent,omitempty" min:"0" desc:"requests under way; a gRPC stream is one for as long as it is open"`
	ConcurrentPerClient int    `json:"concurrentPerClient,omitempty" min:"0" desc:"the same, by client"`
}

// Rate is so many a second, and so many at once after a pause.
type Rate struct {
	PerSecond float64 `json:"perSecond" desc:"requests a second"`
	Burst     int     `json:"burst,omitempty" min:"0" max:"1000000" desc:"how many at once; default those of a second"`
}

// mostClients bounds the table of rates; beyond it newcomers share one rate.
const mostClients = 65536

// presetFiles is what ingress-nginx makes of limit-rps 500 and limit-connections 70: by client, a burst of five
// times the rate, and "connections" are requests under way.
var presetFiles = Config{PerClient: Rate{PerSecond: 500, Burst: 2500}, ConcurrentPerClient: 70}

// Validate names every fault.
func (c *Config) Validate() error {
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	if c.Preset != "" && c.Preset != "files" {
		fault("preset: %q is not files", c.Preset)
	}
	for _, each := range []struct {
		name string
		rate Rate
	}{{"total", c.Total}, {"perClient", c.PerClient}} {
		switch rate := each.rate; {
		case !(rate.PerSecond >= 0 && rate.PerSecond <= 1e9):
			fault("%s.perSecond: %v is not between 0 and 1e9", each.name, rate.PerSecond)
		case rate.PerSecond > 0 && rate.PerSecond < 1e-3:
			fault("%s.perSecond: %v is below one in 1000 seconds", each.name, rate.PerSecond)
		case rate.Burst < 0 || rate.Burst > 1e6:
			fault("%s.burst: %d is not between 0 and 1000000", each.name, rate.Burst)
		case rate.Burst > 0 && rate.PerSecond == 0:
			fault("%s.burst: there is no perSecond", each.name)
		}
	}
	for i, most := range []int{c.Concurrent, c.ConcurrentPerClient} {
		if most < 0 {
			fault("%s: %d is below 0", []string{"concurrent", "concurrentPerClient"}[i], most)
		}
	}
	return errors.Join(faults...)
}

func (c Config) withDefaults() Config {
	if c.Preset == "files" {
		if c.PerClient.PerSecond == 0 {
			c.PerClient = presetFiles.PerClient
		}
		c.ConcurrentPerClient = cmp.Or(c.ConcurrentPerClient, presetFiles.ConcurrentPerClient)
	}
	return c
}

// Limiter has the limits of one route.
type Limiter struct {
	metrics *routeMetrics
	start   time.Time

	total, perClient *table

	concurrent counter
}

// New makes a limiter. Metrics may be nil.
func New(c Config, route string, m *Metrics) *Limiter {
	c = c.withDefaults()
	l := &Limiter{metrics: m.route(route), start: time.Now()}
	l.total, l.perClient = newTable(c.Total, 1), newTable(c.PerClient, mostClients)
	l.concurrent = counter{most: c.Concurrent, perClient: c.ConcurrentPerClient, clients: map[netip.Addr]int{}}
	return l
}

// Wrap limits the requests that reach next. client returns a request's client address. The ResponseWriter is passed on
// as it is.
func (l *Limiter) Wrap(next http.Handler, client func(*http.Request) netip.Addr) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		who := Key(client(r))
		if drop, wait := l.take(who); drop != 0 {
			l.refuse(w, r, drop, wait)
			return
		}
		if drop := l.concurrent.enter(who); drop != 0 {
			l.refuse(w, r, drop, time.Second)
			return
		}
		defer l.concurrent.leave(who)
		next.ServeHTTP(w, r)
	})
}

// take takes one request off the rates, or returns the rate that has none left, and until when.
func (l *Limiter) take(client netip.Addr) (refusal, time.Duration) {
	now := time.Since(l.start)
	wait, overflow := l.perClient.take(client, now)
	if overflow {
		l.metrics.overflow.Inc()
	}
	if wait > 0 {
		return refusedClientRate, wait
	}
	if wait, _ = l.total.take(netip.Addr{}, now); wait > 0 {
		return refusedRate, wait
	}
	return 0, 0
}

func (l *Limiter) refuse(w http.ResponseWriter, r *http.Request, why refusal, wait time.Duration) {
	l.metrics.refused[why].Inc()
	seconds := max(1, int(math.Ceil(wait.Seconds())))
	w.Header().Set("Retry-After", strconv.Itoa(seconds))
	reply.Refuse(w, r, http.StatusTooManyRequests, reply.ResourceExhausted, "too many requests: "+why.text())
}

// Key is the address that a client is counted by: an IPv4 address, or an IPv6 /64.
func Key(a netip.Addr) netip.Addr {
	a = a.Unmap().WithZone("")
	if a.Is6() {
		if p, err := a.Prefix(64); err == nil {
			return p.Addr()
		}
	}
	return a
}

// counter counts the requests under way. It has only clients with such requests.
type counter struct {
	most, perClient int
	mu              sync.Mutex
	all             int
	clients         map[netip.Addr]int
}

// enter counts one request more, or returns the reason for a refusal.
func (c *counter) enter(client netip.Addr) refusal {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.most > 0 && c.all >= c.most:
		return refusedConcurrent
	case c.perClient > 0 && c.clients[client] >= c.perClient:
		return refusedClientConcurrent
	}
	c.all++
	c.clients[client]++
	return 0
}

func (c *counter) leave(client netip.Addr) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all--
	if c.clients[client]--; c.clients[client] == 0 {
		delete(c.clients, client)
	}
}
