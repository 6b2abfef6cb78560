package udp

import "github.com/prometheus/client_golang/prometheus"

// Metrics counts for all plain UDP routes of a program.
type Metrics struct {
	ended     *prometheus.CounterVec
	live      *prometheus.GaugeVec
	datagrams *prometheus.CounterVec
	bytes     *prometheus.CounterVec
	drops     *prometheus.CounterVec
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
		datagrams: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "stack_proxy_udp_datagrams_total",
			Help: "Datagrams passed on, by where they came from.",
		}, []string{"route", "from"}),
		bytes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "stack_proxy_udp_bytes_total",
			Help: "UDP payload passed on, by where it came from.",
		}, []string{"route", "from"}),
		drops: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "stack_proxy_udp_drops_total",
			Help: "Datagrams that went no further, by reason.",
		}, []string{"route", "reason"}),
	}
	if r != nil {
		r.MustRegister(m.ended, m.live, m.datagrams, m.bytes, m.drops)
	}
	return m
}

// meters are one route's, looked up once.
type meters struct {
	ended     [numOutcomes]prometheus.Counter
	live      prometheus.Gauge
	datagrams [2]prometheus.Counter
	bytes     [2]prometheus.Counter
	drops     [numDrops]prometheus.Counter
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
	r := &meters{live: m.live.WithLabelValues(route)}
	for o := range numOutcomes {
		r.ended[o] = m.ended.WithLabelValues(route, o.String())
	}
	for i, from := range []string{"client", "server"} {
		r.datagrams[i] = m.datagrams.WithLabelValues(route, from)
		r.bytes[i] = m.bytes.WithLabelValues(route, from)
	}
	for d := DropTruncated; d < numDrops; d++ {
		r.drops[d] = m.drops.WithLabelValues(route, d.String())
	}
	return r
}

func (r *meters) passed(from, size int) {
	r.datagrams[from].Inc()
	r.bytes[from].Add(float64(size))
}
