package tftp

import (
	"cmp"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tinkerbell/stack/internal/metric"
	"github.com/tinkerbell/stack/pkg/proxy/datagram"
	"github.com/tinkerbell/stack/pkg/proxy/tftp/loader"
)

// Metrics counts for all TFTP routes of a program.
type Metrics struct {
	transfers   *prometheus.CounterVec
	live        *prometheus.GaugeVec
	seconds     *prometheus.HistogramVec
	traffic     datagram.TrafficMetrics
	retransmits *prometheus.CounterVec
	drops       *prometheus.CounterVec
	loaders     *prometheus.CounterVec
}

// NewMetrics registers the metrics of TFTP routes.
func NewMetrics(r prometheus.Registerer) *Metrics {
	s := metric.New(r, "stack_proxy_tftp", "route")
	return &Metrics{
		transfers: s.Counter("transfers_total", "TFTP transfers that have ended, by outcome.", "outcome"),
		live:      s.Gauge("transfers", "TFTP transfers that go on now."),
		seconds: s.Histogram("transfer_duration_seconds",
			"Time from the request to the last acknowledgement of completed TFTP transfers.",
			.01, .03, .1, .3, 1, 3, 10, 30, 100, 300),
		traffic:     datagram.NewTrafficMetrics(s),
		retransmits: s.Counter("retransmits_total", "Data blocks that were sent again."),
		drops:       s.Counter("drops_total", "Datagrams that went no further, by reason.", "reason"),
		loaders: s.Counter("loader_requests_total",
			"Requests for loaders, by whether they were served from memory, or why the server was asked.", "answer"),
	}
}

// meters are one route's, looked up once.
type meters struct {
	transfers   []prometheus.Counter
	live        prometheus.Gauge
	seconds     prometheus.Observer
	traffic     *datagram.Traffic
	retransmits prometheus.Counter
	drops       []prometheus.Counter
	loaders     []prometheus.Counter
}

func (m *Metrics) of(route string) *meters {
	m = cmp.Or(m, NewMetrics(nil))
	return &meters{
		transfers: endings.Counters(m.transfers, route), live: m.live.WithLabelValues(route),
		seconds: m.seconds.WithLabelValues(route), traffic: m.traffic.Of(route),
		retransmits: m.retransmits.WithLabelValues(route), drops: drops.Counters(m.drops, route),
		loaders: loader.Answers.Counters(m.loaders, route),
	}
}
