package tftp

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tinkerbell/stack/pkg/proxy/datagram"
)

// Metrics counts for all TFTP routes of a program.
type Metrics struct {
	transfers   *prometheus.CounterVec
	live        *prometheus.GaugeVec
	seconds     *prometheus.HistogramVec
	traffic     datagram.TrafficMetrics
	retransmits *prometheus.CounterVec
	drops       *prometheus.CounterVec
}

// NewMetrics registers the metrics of TFTP routes.
func NewMetrics(r prometheus.Registerer) *Metrics {
	m := &Metrics{
		transfers: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "stack_proxy_tftp_transfers_total",
			Help: "TFTP transfers that have ended, by outcome.",
		}, []string{"route", "outcome"}),
		live: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "stack_proxy_tftp_transfers",
			Help: "TFTP transfers that go on now.",
		}, []string{"route"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "stack_proxy_tftp_transfer_duration_seconds",
			Help:    "Time from the request to the last acknowledgement of completed TFTP transfers.",
			Buckets: []float64{.01, .03, .1, .3, 1, 3, 10, 30, 100, 300},
		}, []string{"route"}),
		traffic: datagram.NewTrafficMetrics("tftp"),
		retransmits: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "stack_proxy_tftp_retransmits_total",
			Help: "Data blocks that were sent again.",
		}, []string{"route"}),
		drops: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "stack_proxy_tftp_drops_total",
			Help: "Datagrams that went no further, by reason.",
		}, []string{"route", "reason"}),
	}
	if r != nil {
		r.MustRegister(m.transfers, m.live, m.seconds, m.retransmits, m.drops)
		r.MustRegister(m.traffic.Collectors()...)
	}
	return m
}

// meters are one route's, looked up once.
type meters struct {
	transfers   [numOutcomes]prometheus.Counter
	live        prometheus.Gauge
	seconds     prometheus.Observer
	traffic     *datagram.Traffic
	retransmits prometheus.Counter
	drops       [numDrops]prometheus.Counter
}

func (m *Metrics) of(route string) *meters {
	if m == nil {
		m = NewMetrics(nil)
	}
	r := &meters{
		live:        m.live.WithLabelValues(route),
		traffic:     m.traffic.Of(route),
		seconds:     m.seconds.WithLabelValues(route),
		retransmits: m.retransmits.WithLabelValues(route),
	}
	for o := range numOutcomes {
		r.transfers[o] = m.transfers.WithLabelValues(route, o.String())
	}
	for d := DropMalformed; d < numDrops; d++ {
		r.drops[d] = m.drops.WithLabelValues(route, d.String())
	}
	return r
}
