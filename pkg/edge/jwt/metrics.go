package jwt

import (
	"cmp"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tinkerbell/stack/internal/metric"
)

// The results of a check: the label of stack_proxy_jwt_checks_total.
type outcome uint8

const (
	passed       outcome = iota
	missing              // no token
	malformed            // no JWT, or two, or a claim of the wrong type
	badHeader            // crit, typ, kid, or an algorithm that the key is not for
	unknownKey           // no key has the kid
	badSignature         // or an algorithm that is not accepted
	expired
	early // nbf
	badIssuer
	badAudience
	forbidden   // a claim that must be there is not, or has another value
	unavailable // there are no keys yet
)

var outcomes = metric.Enum[outcome]{
	"passed", "missing", "malformed", "header", "unknown_key", "signature", "expired", "early", "issuer",
	"audience", "forbidden", "unavailable",
}

func (o outcome) String() string { return outcomes.Name(o) }

// text is the result for the client: enough to correct a clock, not enough to guess by.
func (o outcome) text() string {
	return [...]string{
		"", "a bearer token is required", "the token is malformed", "the token's header is not accepted",
		"the token's key is unknown", "the token's signature is wrong", "the token has expired",
		"the token is not valid yet", "the token's issuer is another", "the token's audience is another",
		"the token lacks a claim", "",
	}[o]
}

// Metrics are the metrics of tokens, by route.
type Metrics struct {
	checks    *prometheus.CounterVec
	refreshes *prometheus.CounterVec
	success   *prometheus.GaugeVec
	keys      *prometheus.GaugeVec
}

// NewMetrics registers the metrics.
func NewMetrics(r prometheus.Registerer) *Metrics {
	s := metric.New(r, "stack_proxy_jwt", "route")
	return &Metrics{
		checks: s.Counter("checks_total", "Checks of a request's token, by how they ended.", "result"),
		refreshes: s.Counter("key_refreshes_total",
			"Refreshes of the issuer's keys, by result: ok or error. Old keys stay after an error.", "result"),
		success: s.Gauge("keys_refreshed_timestamp_seconds", "When the issuer's keys were last refreshed."),
		keys:    s.Gauge("keys", "The issuer's keys that can be used."),
	}
}

func (m *Metrics) route(name string) *routeMetrics {
	m = cmp.Or(m, NewMetrics(nil))
	return &routeMetrics{
		checks: outcomes.Counters(m.checks, name), refreshes: metric.Results(m.refreshes, name),
		success: m.success.WithLabelValues(name), keys: m.keys.WithLabelValues(name),
	}
}

type routeMetrics struct {
	checks        []prometheus.Counter
	refreshes     metric.ByResult
	success, keys prometheus.Gauge
}

func (m *routeMetrics) refreshed(err error, keys int) {
	m.refreshes.Count(err)
	if err == nil {
		m.success.Set(float64(time.Now().Unix()))
		m.keys.Set(float64(keys))
	}
}
