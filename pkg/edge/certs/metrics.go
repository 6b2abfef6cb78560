package certs

import (
	"cmp"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tinkerbell/stack/internal/metric"
)

// Metrics are the metrics of certificates, by route.
type Metrics struct {
	expiry *prometheus.GaugeVec
	loads  *prometheus.CounterVec
}

// NewMetrics registers the metrics.
func NewMetrics(r prometheus.Registerer) *Metrics {
	s := metric.New(r, "stack_proxy_tls", "route")
	return &Metrics{
		expiry: s.Gauge("certificate_expiry_timestamp_seconds", "When a listener's certificate expires, by its file.",
			"file"),
		loads: s.Counter("certificate_loads_total",
			"Changes of certificates' files, by result: ok or error. The old stay in force after an error.", "result"),
	}
}

func (m *Metrics) route(name string) *routeMetrics {
	m = cmp.Or(m, NewMetrics(nil))
	return &routeMetrics{name, m, metric.Results(m.loads, name)}
}

type routeMetrics struct {
	name  string
	all   *Metrics
	loads metric.ByResult
}

func (m *routeMetrics) expires(file string, when time.Time) {
	m.all.expiry.WithLabelValues(m.name, file).Set(float64(when.Unix()))
}
