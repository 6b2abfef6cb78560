package jwt

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// The results of a check: the label of stack_proxy_jwt_checks_total.
type outcome uint8

const (
	passed       outcome = iota
	remembered           // passed, by an earlier check of the same token
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
	outcomes
)

func (o outcome) String() string {
	return [...]string{
		"passed", "remembered", "missing", "malformed", "header", "unknown_key", "signature", "expired", "early", "issuer",
		"audience", "forbidden", "unavailable",
	}[o]
}

// text is the result for the client: enough to correct a clock, not enough to guess by.
func (o outcome) text() string {
	return [...]string{
		"", "", "a bearer token is required", "the token is malformed", "the token's header is not accepted",
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
	opts := func(name, help string) prometheus.Opts {
		return prometheus.Opts{Namespace: "stack_proxy", Subsystem: "jwt", Name: name, Help: help}
	}
	m := &Metrics{
		checks: prometheus.NewCounterVec(prometheus.CounterOpts(opts("checks_total",
			"Checks of a request's token, by how they ended.")), []string{"route", "result"}),
		refreshes: prometheus.NewCounterVec(prometheus.CounterOpts(opts("key_refreshes_total",
			"Refreshes of the issuer's keys, by result: ok or error. Old keys stay after an error.")),
			[]string{"route", "result"}),
		success: prometheus.NewGaugeVec(prometheus.GaugeOpts(opts("keys_refreshed_timestamp_seconds",
			"When the issuer's keys were last refreshed.")), []string{"route"}),
		keys: prometheus.NewGaugeVec(prometheus.GaugeOpts(opts("keys", "The issuer's keys that can be used.")),
			[]string{"route"}),
	}
	r.MustRegister(m.checks, m.refreshes, m.success, m.keys)
	return m
}

func (m *Metrics) route(name string) *routeMetrics {
	if m == nil {
		return nil
	}
	r := &routeMetrics{
		ok: m.refreshes.WithLabelValues(name, "ok"), failed: m.refreshes.WithLabelValues(name, "error"),
		success: m.success.WithLabelValues(name), keys: m.keys.WithLabelValues(name),
	}
	for i := range r.checks {
		r.checks[i] = m.checks.WithLabelValues(name, outcome(i).String())
	}
	return r
}

type routeMetrics struct {
	checks        [outcomes]prometheus.Counter
	ok, failed    prometheus.Counter
	success, keys prometheus.Gauge
}

func (m *routeMetrics) checked(o outcome) {
	if m != nil {
		m.checks[o].Inc()
	}
}

func (m *routeMetrics) refreshed(err error, keys int) {
	switch {
	case m == nil:
	case err != nil:
		m.failed.Inc()
	default:
		m.ok.Inc()
		m.success.Set(float64(time.Now().Unix()))
		m.keys.Set(float64(keys))
	}
}
