package shaper

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Group has a [Shaper] for each route. It is a prometheus.Collector of the routes with a rate.
type Group struct {
	mu      sync.Mutex
	shapers map[string]*Shaper
}

// NewGroup makes a group without routes.
func NewGroup() *Group { return &Group{shapers: map[string]*Shaper{}} }

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
func (g *Group) SetRate(route string, bits int64) { g.Route(route).SetRate(bits) }

var (
	rateDesc    = desc("limit_bytes_per_second", "What a route may send to all clients together.")
	clientsDesc = desc("clients", "Client addresses that a route with a rate has sent to within a second, or that wait.")
	sentDesc    = desc("sent_bytes_total", "Bytes that a route with a rate was let send.")
)

func desc(name, help string) *prometheus.Desc {
	return prometheus.NewDesc("stack_proxy_rate_"+name, help, []string{"route"}, nil)
}

// Describe implements prometheus.Collector.
func (g *Group) Describe(descs chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{rateDesc, clientsDesc, sentDesc} {
		descs <- d
	}
}

// Collect implements prometheus.Collector.
func (g *Group) Collect(to chan<- prometheus.Metric) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for route, s := range g.shapers {
		rate, clients, granted := s.state()
		if rate == 0 {
			continue
		}
		to <- prometheus.MustNewConstMetric(rateDesc, prometheus.GaugeValue, float64(rate)/8, route)
		to <- prometheus.MustNewConstMetric(clientsDesc, prometheus.GaugeValue, float64(clients), route)
		to <- prometheus.MustNewConstMetric(sentDesc, prometheus.CounterValue, float64(granted), route)
	}
}

// state has the values of the metrics.
func (s *Shaper) state() (rate int64, clients int, granted uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	for _, c := range s.clients {
		if c.recent(now) {
			clients++
		}
	}
	return s.rate, clients, s.granted
}
