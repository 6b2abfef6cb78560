package shaper

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// Group has a [Shaper] for each route. It is a prometheus.Collector of the routes with a rate.
type Group struct {
	mu      sync.Mutex
	shapers map[string]*Shaper
	waits   *prometheus.HistogramVec
}

// NewGroup makes a group without routes.
func NewGroup() *Group {
	return &Group{shapers: map[string]*Shaper{}, waits: prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Namespace: "stack_proxy", Subsystem: "rate", Name: "wait_seconds",
		Help:    "How long senders waited for their share of a route's rate, each time.",
		Buckets: []float64{.001, .01, .03, .1, .3, 1, 3, 10, 30},
	}, []string{"route"})}
}

// Route returns a route's shaper by its name, and makes it the first time.
func (g *Group) Route(name string) *Shaper {
	g.mu.Lock()
	defer g.mu.Unlock()
	s := g.shapers[name]
	if s == nil {
		s = &Shaper{}
		g.shapers[name] = s
	}
	return s
}

// SetRate changes a route's rate, in bits a second; 0 is none.
func (g *Group) SetRate(route string, bits int64) {
	s := g.Route(route)
	if bits > 0 {
		s.mu.Lock()
		s.waits = g.waits.WithLabelValues(route)
		s.mu.Unlock()
	}
	s.SetRate(bits)
}

var (
	rateDesc  = desc("limit_bytes_per_second", "What a route may send to all clients together.")
	shareDesc = desc("share_bytes_per_second",
		"What each client would get of a route's rate if all that were sent to in the last second wanted as much.")
	clientsDesc = desc("clients", "Client addresses that a route with a rate has sent to within a second, or that wait.")
	waitingDesc = desc("waiting_clients", "Client addresses that wait for their share of a route's rate.")
	sentDesc    = desc("sent_bytes_total", "Bytes that a route with a rate was let send.")
)

func desc(name, help string) *prometheus.Desc {
	return prometheus.NewDesc("stack_proxy_rate_"+name, help, []string{"route"}, nil)
}

// Describe implements prometheus.Collector.
func (g *Group) Describe(descs chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{rateDesc, shareDesc, clientsDesc, waitingDesc, sentDesc} {
		descs <- d
	}
	g.waits.Describe(descs)
}

// Collect implements prometheus.Collector.
func (g *Group) Collect(to chan<- prometheus.Metric) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for route, s := range g.shapers {
		state := s.state()
		if state.rate == 0 {
			continue
		}
		gauge := func(d *prometheus.Desc, value float64) {
			to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, route)
		}
		limit := float64(state.rate) / 8
		gauge(rateDesc, limit)
		gauge(shareDesc, limit/float64(max(state.clients, 1)))
		gauge(clientsDesc, float64(state.clients))
		gauge(waitingDesc, float64(state.waiting))
		to <- prometheus.MustNewConstMetric(sentDesc, prometheus.CounterValue, float64(state.granted), route)
	}
	g.waits.Collect(to)
}

// state has the values of the metrics.
type state struct {
	rate             int64
	clients, waiting int
	granted          uint64
}

func (s *Shaper) state() state {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	told := state{rate: s.rate, waiting: len(s.backlog), granted: s.granted}
	for _, c := range s.clients {
		if c.waiters.Len() > 0 || now-c.used < forgetAfter {
			told.clients++
		}
	}
	return told
}
