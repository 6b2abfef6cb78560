package limit

import "github.com/prometheus/client_golang/prometheus"

// The reasons of refusals: the label of stack_proxy_limited_total. 0 is no refusal.
type refusal uint8

const (
	refusedRate             refusal = iota + 1 // Total
	refusedClientRate                          // PerClient
	refusedConcurrent                          // Concurrent
	refusedClientConcurrent                    // ConcurrentPerClient
	refusals
)

func (r refusal) String() string {
	return [...]string{
		"", "rate", "client_rate", "concurrent", "client_concurrent",
	}[r]
}

// text is the refusal for the client.
func (r refusal) text() string {
	return [...]string{
		"", "the rate of all clients is used up", "the rate of this client is used up", "too many are under way",
		"too many of this client are under way",
	}[r]
}

// Metrics are the metrics of limits, by route.
type Metrics struct {
	refused  *prometheus.CounterVec
	overflow *prometheus.CounterVec
}

// NewMetrics registers the metrics.
func NewMetrics(r prometheus.Registerer) *Metrics {
	m := &Metrics{
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "stack_proxy", Name: "limited_total",
			Help: "Requests that were refused by a limit, by reason.",
		}, []string{"route", "reason"}),
		overflow: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "stack_proxy", Name: "limit_overflow_total",
			Help: "Requests of clients for whom the table of rates had no room.",
		}, []string{"route"}),
	}
	r.MustRegister(m.refused, m.overflow)
	return m
}

func (m *Metrics) route(name string) *routeMetrics {
	if m == nil {
		return nil
	}
	r := &routeMetrics{overflow: m.overflow.WithLabelValues(name)}
	for i := refusedRate; i < refusals; i++ {
		r.refused[i] = m.refused.WithLabelValues(name, i.String())
	}
	return r
}

type routeMetrics struct {
	refused  [refusals]prometheus.Counter
	overflow prometheus.Counter
}

func (m *routeMetrics) refuse(why refusal) {
	if m != nil {
		m.refused[why].Inc()
	}
}

func (m *routeMetrics) overflowed() {
	if m != nil {
		m.overflow.Inc()
	}
}
