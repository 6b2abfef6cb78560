package certs

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics are the metrics of certificates, by route.
type Metrics struct {
	expiry *prometheus.GaugeVec
	loads  *prometheus.CounterVec
}

// NewMetrics registers the metrics.
func NewMetrics(r prometheus.Registerer) *Metrics {
	m := &Metrics{
		expiry: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: "stack_proxy", Subsystem: "tls", Name: "certificate_expiry_timestamp_seconds",
			Help: "When a listener's certificate expires, by its file.",
		}, []string{"route", "file"}),
		loads: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "stack_proxy", Subsystem: "tls", Name: "certificate_loads_total",
			Help: "Changes of certificates' files, by result: ok or error. The old stay in force after an error.",
		}, []string{"route", "result"}),
	}
	r.MustRegister(m.expiry, m.loads)
	return m
}

func (m *Metrics) route(name string) *routeMetrics {
	if m == nil {
		return nil
	}
	return &routeMetrics{
		name: name, all: m, ok: m.loads.WithLabelValues(name, "ok"), failed: m.loads.WithLabelValues(name, "error"),
	}
}

type routeMetrics struct {
	name       string
	all        *Metrics
	ok, failed prometheus.Counter
}

func (m *routeMetrics) loaded(err error) {
	switch {
	case m == nil:
	case err != nil:
		m.failed.Inc()
	default:
		m.ok.Inc()
	}
}

func (m *routeMetrics) expires(file string, when time.Time) {
	if m != nil {
		m.all.expiry.WithLabelValues(m.name, file).Set(float64(when.Unix()))
	}
}
