package endpoint

import "github.com/prometheus/client_golang/prometheus"

// Metrics are the pools' metrics, by route.
type Metrics struct {
	known     *prometheus.GaugeVec
	lookups   *prometheus.CounterVec
	failures  *prometheus.CounterVec
	ejections *prometheus.CounterVec
	checks    *prometheus.CounterVec
}

// NewMetrics registers the metrics.
func NewMetrics(r prometheus.Registerer) *Metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "stack_proxy", Subsystem: "backend", Name: name, Help: help,
		}, append([]string{"route"}, labels...))
	}
	m := &Metrics{
		known: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: "stack_proxy", Subsystem: "backend", Name: "endpoints",
			Help: "Endpoints of the route's backend, by state: healthy or unhealthy (ejected or failing its checks).",
		}, []string{"route", "state"}),
		lookups:   counter("lookups_total", "Answers about where the backend is, by result: ok or error.", "result"),
		failures:  counter("failures_total", "Connections that an endpoint refused or broke before it answered."),
		ejections: counter("ejections_total", "Endpoints taken out after failures in a row."),
		checks:    counter("checks_total", "Active health checks, by result: ok or error.", "result"),
	}
	r.MustRegister(m.known, m.lookups, m.failures, m.ejections, m.checks)
	return m
}

// route binds the metrics to one route; nil stays nil.
func (m *Metrics) route(name string) *routeMetrics {
	if m == nil {
		return nil
	}
	r := &routeMetrics{
		name:      name,
		all:       m,
		healthy:   m.known.WithLabelValues(name, "healthy"),
		unhealthy: m.known.WithLabelValues(name, "unhealthy"),
		failures:  m.failures.WithLabelValues(name),
		ejections: m.ejections.WithLabelValues(name),
	}
	for i, result := range []string{"ok", "error"} {
		r.lookups[i] = m.lookups.WithLabelValues(name, result)
		r.checks[i] = m.checks.WithLabelValues(name, result)
	}
	return r
}

// Forget removes the metrics of a route that has been closed.
func (m *Metrics) Forget(route string) {
	labels := prometheus.Labels{"route": route}
	m.known.DeletePartialMatch(labels)
	for _, vec := range []*prometheus.CounterVec{m.lookups, m.failures, m.ejections, m.checks} {
		vec.DeletePartialMatch(labels)
	}
}

type routeMetrics struct {
	name                string
	all                 *Metrics
	healthy, unhealthy  prometheus.Gauge
	failures, ejections prometheus.Counter
	lookups, checks     [2]prometheus.Counter // ok, error
}

func (m *routeMetrics) lookup(err error) {
	if m != nil {
		m.lookups[outcome(err)].Inc()
	}
}

func (m *routeMetrics) checked(err error) {
	if m != nil {
		m.checks[outcome(err)].Inc()
	}
}

func (m *routeMetrics) failed() {
	if m != nil {
		m.failures.Inc()
	}
}

func (m *routeMetrics) ejected() {
	if m != nil {
		m.ejections.Inc()
	}
}

func (m *routeMetrics) endpoints(healthy, unhealthy int) {
	if m != nil {
		m.healthy.Set(float64(healthy))
		m.unhealthy.Set(float64(unhealthy))
	}
}

func outcome(err error) int {
	if err != nil {
		return 1
	}
	return 0
}
