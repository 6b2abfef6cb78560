package udp

import (
	"cmp"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tinkerbell/stack/internal/metric"
	"github.com/tinkerbell/stack/pkg/proxy/datagram"
)

// Metrics counts for all plain UDP routes of a program.
type Metrics struct {
	set     *metric.Set
	ended   *prometheus.CounterVec
	live    *prometheus.GaugeVec
	traffic datagram.TrafficMetrics
	drops   *prometheus.CounterVec
}

// NewMetrics registers the metrics of plain UDP routes.
func NewMetrics(r prometheus.Registerer) *Metrics {
	s := metric.New(r, "stack_proxy_udp", "route")
	return &Metrics{
		set:     s,
		ended:   s.Counter("sessions_total", "UDP sessions that have ended, by outcome.", "outcome"),
		live:    s.Gauge("sessions", "UDP sessions in the table."),
		traffic: datagram.NewTrafficMetrics(s),
		drops:   s.Counter("drops_total", "Datagrams that went no further, by reason.", "reason"),
	}
}

// Forget removes the metrics of a route that has been closed.
func (m *Metrics) Forget(route string) { m.set.Forget(route) }

// meters are one route's, looked up once.
type meters struct {
	ended   []prometheus.Counter
	live    prometheus.Gauge
	traffic *datagram.Traffic
	drops   []prometheus.Counter
}

func (m *Metrics) of(route string) *meters {
	m = cmp.Or(m, NewMetrics(nil))
	return &meters{
		ended: endings.Counters(m.ended, route), live: m.live.WithLabelValues(route), traffic: m.traffic.Of(route),
		drops: drops.Counters(m.drops, route),
	}
}
