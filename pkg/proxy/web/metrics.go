package web

import (
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics are the HTTP fronts' metrics, by route.
type Metrics struct {
	connections *prometheus.CounterVec
	open        *prometheus.GaugeVec
	refusals    *prometheus.CounterVec
	requests    *prometheus.CounterVec
	calls       *prometheus.CounterVec
	flight      *prometheus.GaugeVec
	durations   *prometheus.HistogramVec
	transferred *prometheus.CounterVec
	failures    *prometheus.CounterVec
	retries     *prometheus.CounterVec
}

// NewMetrics registers the metrics.
func NewMetrics(r prometheus.Registerer) *Metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "stack_proxy", Subsystem: "http", Name: name, Help: help,
		}, append([]string{"route"}, labels...))
	}
	gauge := func(name, help string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: "stack_proxy", Subsystem: "http", Name: name, Help: help,
		}, []string{"route"})
	}
	m := &Metrics{
		connections: counter("connections_total", "HTTP connections that were accepted."),
		open:        gauge("open_connections", "HTTP connections open now."),
		refusals:    counter("refused_total", "HTTP connections that were closed at once, by reason.", "reason"),
		requests:    counter("requests_total", "HTTP requests answered, by status code.", "code"),
		calls: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "stack_proxy", Subsystem: "grpc", Name: "handled_total",
			Help: "gRPC calls that ended, by gRPC's status code.",
		}, []string{"route", "grpc_code"}),
		flight: gauge("requests_in_flight", "HTTP requests being answered now."),
		durations: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: "stack_proxy", Subsystem: "http", Name: "request_duration_seconds",
			Help:    "Time from a request's header to the end of its answer.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 60, 600},
		}, []string{"route"}),
		transferred: counter("transferred_bytes_total",
			"Bytes of HTTP connections, by direction: in (from clients) or out (to clients).", "direction"),
		failures: counter("failures_total",
			"Requests that no endpoint answered in full, by reason.", "reason"),
		retries: counter("retries_total", "Requests given to another endpoint because one did not take the connection."),
	}
	r.MustRegister(m.connections, m.open, m.refusals, m.requests, m.calls, m.flight, m.durations, m.transferred,
		m.failures, m.retries)
	return m
}

// route binds the metrics to one route; nil stays nil.
func (m *Metrics) route(name string) *routeMetrics {
	if m == nil {
		return nil
	}
	return &routeMetrics{
		name:        name,
		all:         m,
		connections: m.connections.WithLabelValues(name),
		open:        m.open.WithLabelValues(name),
		flight:      m.flight.WithLabelValues(name),
		durations:   m.durations.WithLabelValues(name),
		in:          m.transferred.WithLabelValues(name, "in"),
		out:         m.transferred.WithLabelValues(name, "out"),
		retries:     m.retries.WithLabelValues(name),
	}
}

type routeMetrics struct {
	name                 string
	all                  *Metrics
	connections, retries prometheus.Counter
	in, out              prometheus.Counter
	open, flight         prometheus.Gauge
	durations            prometheus.Observer
	codes                sync.Map // int → prometheus.Counter
}

func (m *routeMetrics) opened() {
	if m != nil {
		m.connections.Inc()
		m.open.Inc()
	}
}

func (m *routeMetrics) closed() {
	if m != nil {
		m.open.Dec()
	}
}

func (m *routeMetrics) refused(reason string) {
	if m != nil {
		m.all.refusals.WithLabelValues(m.name, reason).Inc()
	}
}

func (m *routeMetrics) bytesIn(n int) {
	if m != nil && n > 0 {
		m.in.Add(float64(n))
	}
}

func (m *routeMetrics) bytesOut(n int64) {
	if m != nil && n > 0 {
		m.out.Add(float64(n))
	}
}

func (m *routeMetrics) began() {
	if m != nil {
		m.flight.Inc()
	}
}

func (m *routeMetrics) ended(code int, took time.Duration) {
	if m == nil {
		return
	}
	m.flight.Dec()
	m.durations.Observe(took.Seconds())
	counter, ok := m.codes.Load(code)
	if !ok {
		counter, _ = m.codes.LoadOrStore(code, m.all.requests.WithLabelValues(m.name, strconv.Itoa(code)))
	}
	counter.(prometheus.Counter).Inc()
}

// speaksGRPC makes the counters of a route for gRPC, so that the first of a kind is seen as an increase.
func (m *routeMetrics) speaksGRPC() {
	if m != nil {
		for _, code := range grpcCodes {
			m.all.calls.WithLabelValues(m.name, code)
		}
	}
}

func (m *routeMetrics) handled(grpcCode string) {
	if m != nil {
		m.all.calls.WithLabelValues(m.name, grpcCode).Inc()
	}
}

func (m *routeMetrics) failed(reason string) {
	if m != nil {
		m.all.failures.WithLabelValues(m.name, reason).Inc()
	}
}

func (m *routeMetrics) retried() {
	if m != nil {
		m.retries.Inc()
	}
}
