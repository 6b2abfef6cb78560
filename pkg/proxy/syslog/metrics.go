package syslog

import (
	"cmp"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tinkerbell/stack/internal/metric"
)

// Metrics counts for all syslog routes of a program.
type Metrics struct{ datagrams, bytes, drops *prometheus.CounterVec }

// NewMetrics registers the metrics of syslog routes.
func NewMetrics(r prometheus.Registerer) *Metrics {
	s := metric.New(r, "stack_proxy_syslog", "route")
	return &Metrics{
		datagrams: s.Counter("datagrams_total", "Syslog datagrams passed on."),
		bytes:     s.Counter("bytes_total", "Payload of the syslog datagrams that were received."),
		drops: s.Counter("drops_total", "Syslog datagrams lost, by reason; overflow is the kernel's own count.",
			"reason"),
	}
}

// meters are one route's, looked up once.
type meters struct {
	datagrams, bytes prometheus.Counter
	drops            []prometheus.Counter
}

func (m *Metrics) of(route string) *meters {
	m = cmp.Or(m, NewMetrics(nil))
	return &meters{
		datagrams: m.datagrams.WithLabelValues(route), bytes: m.bytes.WithLabelValues(route),
		drops: drops.Counters(m.drops, route),
	}
}

func (r *meters) drop(d Drop, n int) {
	if d != NotDropped && n > 0 {
		r.drops[d].Add(float64(n))
	}
}
