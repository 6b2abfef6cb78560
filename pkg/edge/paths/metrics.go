package paths

import "github.com/prometheus/client_golang/prometheus"

// The reasons of refusals: the label of stack_proxy_paths_refused_total. 0 is no refusal.
type refusal uint8

const (
	passed           refusal = iota
	refusedDenied            // Deny has it
	refusedUnlisted          // Allow does not have it
	refusedAmbiguous         // the path can be read in several ways, and a rule refuses one of them
	refusals
)

func (r refusal) String() string {
	return [...]string{"passed", "denied", "unlisted", "ambiguous"}[r]
}

// Metrics are the metrics of paths, by route.
type Metrics struct{ refused *prometheus.CounterVec }

// NewMetrics registers the metrics.
func NewMetrics(r prometheus.Registerer) *Metrics {
	m := &Metrics{refused: prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: "stack_proxy", Name: "paths_refused_total",
		Help: "Requests that were refused for their path, by reason.",
	}, []string{"route", "reason"})}
	r.MustRegister(m.refused)
	return m
}

type routeMetrics [refusals]prometheus.Counter

func (m *Metrics) route(name string) *routeMetrics {
	if m == nil {
		return nil
	}
	r := &routeMetrics{}
	for why := refusedDenied; why < refusals; why++ {
		r[why] = m.refused.WithLabelValues(name, why.String())
	}
	return r
}

func (m *routeMetrics) refuse(why refusal) {
	if m != nil {
		m[why].Inc()
	}
}
