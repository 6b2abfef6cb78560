package tftp

import "github.com/prometheus/client_golang/prometheus"

// Metrics counts for all TFTP routes of a program.
type Metrics struct {
	transfers   *prometheus.CounterVec
	live        *prometheus.GaugeVec
	seconds     *prometheus.HistogramVec
	datagrams   *prometheus.CounterVec
	bytes       *prometheus.CounterVec
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
		datagrams: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "stack_proxy_tftp_datagrams_total",
			Help: "Datagrams passed on, by where they came from.",
		}, []string{"route", "from"}),
		bytes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "stack_proxy_tftp_bytes_total",
			Help: "UDP payload passed on, by where it came from.",
		}, []string{"route", "from"}),
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
		r.MustRegister(m.transfers, m.live, m.seconds, m.datagrams, m.bytes, m.retransmits, m.drops)
	}
	return m
}

// meters are one route's, looked up once.
type meters struct {
	transfers   [numOutcomes]prometheus.Counter
	live        prometheus.Gauge
	seconds     prometheus.Observer
	datagrams   [2]prometheus.Counter
	bytes       [2]prometheus.Counter
	retransmits prometheus.Counter
	drops       [numDrops]prometheus.Counter
}

// Indices of meters by origin.
const (
	fromClient = 0
	fromServer = 1
)

func (m *Metrics) of(route string) *meters {
	if m == nil {
		m = NewMetrics(nil)
	}
	r := &meters{
		live:        m.live.WithLabelValues(route),
		seconds:     m.seconds.WithLabelValues(route),
		retransmits: m.retransmits.WithLabelValues(route),
	}
	for o := range numOutcomes {
		r.transfers[o] = m.transfers.WithLabelValues(route, o.String())
	}
	for i, from := range []string{"client", "server"} {
		r.datagrams[i] = m.datagrams.WithLabelValues(route, from)
		r.bytes[i] = m.bytes.WithLabelValues(route, from)
	}
	for d := DropMalformed; d < numDrops; d++ {
		r.drops[d] = m.drops.WithLabelValues(route, d.String())
	}
	return r
}

func (r *meters) passed(from, size int) {
	r.datagrams[from].Inc()
	r.bytes[from].Add(float64(size))
}
