package queue

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// refusal is the reason for which a machine may not wait: the label of stack_proxy_queue_refused_total.
type refusal uint8

const (
	refusedFull  refusal = iota // too many machines wait already
	refusedRetry                // the client comes again instead
	refusals
)

func (r refusal) String() string { return [...]string{"full", "retry"}[r] }

// Group has a [Queue] for each route. It is a prometheus.Collector of the routes with a bound.
type Group struct {
	mu     sync.Mutex
	queues map[string]*Queue
	waits  *prometheus.HistogramVec
}

// NewGroup makes a group without routes.
func NewGroup() *Group {
	return &Group{queues: map[string]*Queue{}, waits: prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Namespace: "stack_proxy", Subsystem: "queue", Name: "wait_seconds",
		Help:    "How long machines waited to be served.",
		Buckets: []float64{.001, .1, 1, 3, 10, 30, 100, 300, 1000},
	}, []string{"route"})}
}

// Route returns a route's queue by its name, and makes it the first time.
func (g *Group) Route(name string) *Queue {
	g.mu.Lock()
	defer g.mu.Unlock()
	q := g.queues[name]
	if q == nil {
		q = &Queue{}
		g.queues[name] = q
	}
	return q
}

// SetLimits changes a route's bounds; see [Queue.SetLimits].
func (g *Group) SetLimits(route string, most, length int) {
	q := g.Route(route)
	if most > 0 {
		q.mu.Lock()
		q.waits = g.waits.WithLabelValues(route)
		q.mu.Unlock()
	}
	q.SetLimits(most, length)
}

var (
	limitDesc   = desc("limit_machines", "How many machines a route serves at a time.", "route")
	servedDesc  = desc("served_machines", "How many machines a route with a bound serves now.", "route")
	lengthDesc  = desc("waiting_machines", "How many machines wait to be served.", "route")
	refusedDesc = desc("refused_total", "Requests and connections that could not wait, by reason.", "route", "reason")
)

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("stack_proxy_queue_"+name, help, labels, nil)
}

// Describe implements prometheus.Collector.
func (g *Group) Describe(descs chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{limitDesc, servedDesc, lengthDesc, refusedDesc} {
		descs <- d
	}
	g.waits.Describe(descs)
}

// Collect implements prometheus.Collector.
func (g *Group) Collect(to chan<- prometheus.Metric) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for route, q := range g.queues {
		q.mu.Lock()
		most, served, waiting, refused := q.most, q.served, q.waiting.Len(), q.refused
		q.mu.Unlock()
		if most == 0 {
			continue
		}
		for d, value := range map[*prometheus.Desc]int{limitDesc: most, servedDesc: served, lengthDesc: waiting} {
			to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(value), route)
		}
		for why := range refusals {
			to <- prometheus.MustNewConstMetric(refusedDesc, prometheus.CounterValue, float64(refused[why]), route,
				why.String())
		}
	}
	g.waits.Collect(to)
}
