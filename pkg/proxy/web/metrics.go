package web

import (
	"cmp"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tinkerbell/stack/internal/metric"
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
	s := metric.New(r, "stack_proxy_http", "route")
	return &Metrics{
		connections: s.Counter("connections_total", "HTTP connections that were accepted."),
		open:        s.Gauge("open_connections", "HTTP connections open now."),
		refusals:    s.Counter("refused_total", "HTTP connections that were closed at once, by reason.", "reason"),
		requests:    s.Counter("requests_total", "HTTP requests answered, by status code.", "code"),
		calls: metric.New(r, "stack_proxy_grpc", "route").Counter("handled_total",
			"gRPC calls that ended, by gRPC's status code.", "grpc_code"),
		flight: s.Gauge("requests_in_flight", "HTTP requests being answered now."),
		durations: s.Histogram("request_duration_seconds", "Time from a request's header to the end of its answer.",
			.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 60, 600),
		transferred: s.Counter("transferred_bytes_total",
			"Bytes of HTTP connections, by direction: in (from clients) or out (to clients).", "direction"),
		failures: s.Counter("failures_total", "Requests that no endpoint answered in full, by reason.", "reason"),
		retries:  s.Counter("retries_total", "Requests given to another endpoint because one did not take the connection."),
	}
}

// route binds the metrics to one route.
func (m *Metrics) route(name string) *routeMetrics {
	m = cmp.Or(m, NewMetrics(nil))
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

func (m *routeMetrics) opened() { m.connections.Inc(); m.open.Inc() }

func (m *routeMetrics) closed() { m.open.Dec() }

func (m *routeMetrics) refused(reason string) { m.all.refusals.WithLabelValues(m.name, reason).Inc() }

func (m *routeMetrics) bytesIn(n int) {
	if n > 0 {
		m.in.Add(float64(n))
	}
}

func (m *routeMetrics) bytesOut(n int64) {
	if n > 0 {
		m.out.Add(float64(n))
	}
}

func (m *routeMetrics) began() { m.flight.Inc() }

func (m *routeMetrics) ended(code int, took time.Duration) {
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
	for _, code := range grpcCodes {
		m.all.calls.WithLabelValues(m.name, code)
	}
}

func (m *routeMetrics) handled(grpcCode string) { m.all.calls.WithLabelValues(m.name, grpcCode).Inc() }

func (m *routeMetrics) failed(reason string) { m.all.failures.WithLabelValues(m.name, reason).Inc() }

func (m *routeMetrics) retried() { m.retries.Inc() }
