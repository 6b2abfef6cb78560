package paths

import (
	"cmp"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tinkerbell/stack/internal/metric"
)

// The reasons of refusals: the label of stack_proxy_paths_refused_total. 0 is no refusal.
type refusal uint8

const (
	passed           refusal = iota
	refusedDenied            // Deny has it
	refusedUnlisted          // Allow does not have it
	refusedAmbiguous         // the path can be read in several ways, and a rule refuses one of them
)

var refusals = metric.Enum[refusal]{metric.None, "denied", "unlisted", "ambiguous"}

func (r refusal) String() string { return refusals.Name(r) }

// Metrics are the metrics of paths, by route.
type Metrics struct{ refused *prometheus.CounterVec }

// NewMetrics registers the metrics.
func NewMetrics(r prometheus.Registerer) *Metrics {
	s := metric.New(r, "stack_proxy", "route")
	return &Metrics{s.Counter("paths_refused_total", "Requests that were refused for their path, by reason.", "reason")}
}

// route are one route's counters, by refusal.
func (m *Metrics) route(name string) []prometheus.Counter {
	m = cmp.Or(m, NewMetrics(nil))
	return refusals.Counters(m.refused, name)
}
