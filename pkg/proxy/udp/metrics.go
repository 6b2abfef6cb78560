package udp

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tinkerbell/stack/pkg/proxy/datagram"
)

// Metrics counts for all plain UDP routes of a program.
type Metrics struct {
	ended   *prometheus.CounterVec
	live    *prometheus.GaugeVec
	traffic datagram.TrafficMetrics
	drops   *prometheus.CounterVec
}

// NewMetrics registers the metrics of plain UDP routes.
func NewMetrics(r prometheus.Registerer) *Metrics {
	m := &Metrics{
		ended: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "stack_proxy_udp_sessions_total",
			Help: "UDP sessions that have ended, by outcome.",
		}, []string{"route", "outcome"}),
		live: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "stack_proxy_udp_sessions",
			Help: "UDP sessions in the table.",
		}, []string{"route"}),
		traffic: datagram.NewTrafficMetrics("udp"),
		drops: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "stack_proxy_udp_drops_total",
			Help: "Datagrams that went no further, by reason.",
		}, []string{"route", "reason"}),
	}
	if r != nil {
		r.MustRegister(m.ended, m.live, m.drops)
		r.MustRegister(m.traffic.Collectors()...)
	}
	return m
}

// Forget removes the metrics of a route that has been closed.
func (m *Metrics) Forget(route string) {
	labels := prometheus.Labels{"route": route}
	m.ended.DeletePartialMatch(labels)
	m.live.DeletePartialMatch(labels)
	m.drops.DeletePartialMatch(labels)
	m.traffic.Forget(route)
}

// meters are one route's, looked up once.
type meters struct {
	ended   [numOutcomes]prometheus.Counter
	live    prometheus.Gauge
	traffic *datagram.Traffic
	drops   [numDrops]prometheus.Counter
}

func (m *Metrics) of(route string) *meters {
	if m == nil {
		m = NewMetrics(nil)
	}
	r := &meters{live: m.live.WithLabelValues(route), traffic: m.traffic.Of(route)}
	for o := range numOutcomes {
		r.ended[o] = m.ended.WithLabelValues(route, o.String())
	}
	for d := DropTruncated; d < numDrops; d++ {
		r.drops[d] = m.drops.WithLabelValues(route, d.String())
	}
	return r
}
