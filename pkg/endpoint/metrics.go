package endpoint

import (
	"cmp"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tinkerbell/stack/internal/metric"
)

// Metrics are the pools' metrics, by route.
type Metrics struct {
	set       *metric.Set
	known     *prometheus.GaugeVec
	lookups   *prometheus.CounterVec
	failures  *prometheus.CounterVec
	ejections *prometheus.CounterVec
}

// NewMetrics registers the metrics.
func NewMetrics(r prometheus.Registerer) *Metrics {
	s := metric.New(r, "stack_proxy_backend", "route")
	return &Metrics{
		set: s,
		known: s.Gauge("endpoints",
			"Endpoints of the route's backend, by state: healthy, or unhealthy (ejected).", "state"),
		lookups:   s.Counter("lookups_total", "Answers about where the backend is, by result: ok or error.", "result"),
		failures:  s.Counter("failures_total", "Connections that an endpoint refused or broke before it answered."),
		ejections: s.Counter("ejections_total", "Endpoints taken out after failures in a row."),
	}
}

// Forget removes the metrics of a route that has been closed.
func (m *Metrics) Forget(route string) { m.set.Forget(route) }

// route binds the metrics to one route.
func (m *Metrics) route(name string) *routeMetrics {
	m = cmp.Or(m, NewMetrics(nil))
	return &routeMetrics{
		healthy:   m.known.WithLabelValues(name, "healthy"),
		unhealthy: m.known.WithLabelValues(name, "unhealthy"),
		failures:  m.failures.WithLabelValues(name),
		ejections: m.ejections.WithLabelValues(name),
		lookups:   metric.Results(m.lookups, name),
	}
}

type routeMetrics struct {
	healthy, unhealthy  prometheus.Gauge
	failures, ejections prometheus.Counter
	lookups             metric.ByResult
}

func (m *routeMetrics) endpoints(healthy, unhealthy int) {
	m.healthy.Set(float64(healthy))
	m.unhealthy.Set(float64(unhealthy))
}
