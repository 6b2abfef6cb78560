package limit

import (
	"cmp"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tinkerbell/stack/internal/metric"
)

// The reasons of refusals: the label of stack_proxy_limited_total. 0 is no refusal.
type refusal uint8

const (
	refusedRate             refusal = iota + 1 // Total
	refusedClientRate                          // PerClient
	refusedConcurrent                          // Concurrent
	refusedClientConcurrent                    // ConcurrentPerClient
)

var refusals = metric.Enum[refusal]{metric.None, "rate", "client_rate", "concurrent", "client_concurrent"}

func (r refusal) String() string { return refusals.Name(r) }

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
	s := metric.New(r, "stack_proxy", "route")
	return &Metrics{
		refused:  s.Counter("limited_total", "Requests that were refused by a limit, by reason.", "reason"),
		overflow: s.Counter("limit_overflow_total", "Requests of clients for whom the table of rates had no room."),
	}
}

func (m *Metrics) route(name string) *routeMetrics {
	m = cmp.Or(m, NewMetrics(nil))
	return &routeMetrics{refusals.Counters(m.refused, name), m.overflow.WithLabelValues(name)}
}

type routeMetrics struct {
	refused  []prometheus.Counter
	overflow prometheus.Counter
}
