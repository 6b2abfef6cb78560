package syslog

import "github.com/prometheus/client_golang/prometheus"

// Metrics counts for all syslog routes of a program.
type Metrics struct {
	datagrams *prometheus.CounterVec
	bytes     *prometheus.CounterVec
	drops     *prometheus.CounterVec
}

// NewMetrics registers the metrics of syslog routes.
func NewMetrics(r prometheus.Registerer) *Metrics {
	m := &Metrics{
		datagrams: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "stack_proxy_syslog_datagrams_total",
			Help: "Syslog datagrams passed on.",
		}, []string{"route"}),
		bytes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "stack_proxy_syslog_bytes_total",
			Help: "Payload of the syslog datagrams that were received.",
		}, []string{"route"}),
		drops: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "stack_proxy_syslog_drops_total",
			Help: "Syslog datagrams lost, by reason; overflow is the kernel's own count.",
		}, []string{"route", "reason"}),
	}
	if r != nil {
		r.MustRegister(m.datagrams, m.bytes, m.drops)
	}
	return m
}

// meters are one route's, looked up once.
type meters struct {
	datagrams prometheus.Counter
	bytes     prometheus.Counter
	drops     [numDrops]prometheus.Counter
}

func (m *Metrics) of(route string) *meters {
	if m == nil {
		m = NewMetrics(nil)
	}
	r := &meters{datagrams: m.datagrams.WithLabelValues(route), bytes: m.bytes.WithLabelValues(route)}
	for d := DropEmpty; d < numDrops; d++ {
		r.drops[d] = m.drops.WithLabelValues(route, d.String())
	}
	return r
}

func (r *meters) drop(d Drop, n int) {
	if d != DropNot && n > 0 {
		r.drops[d].Add(float64(n))
	}
}
