package server

import "github.com/prometheus/client_golang/prometheus"

// Metrics are the metrics of a pool, by server as it is named in the settings.
type Metrics struct {
	requests, replies *prometheus.CounterVec
	up, seen          *prometheus.GaugeVec
}

// ReplyBuckets are those of the time to a reply, in seconds: from a server on this node to one that is as good as
// silent.
func ReplyBuckets() []float64 {
	return []float64{.00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}
}

// NewMetrics makes metrics whose names begin with a prefix.
func NewMetrics(prefix string) *Metrics {
	label := []string{"server"}
	return &Metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: prefix + "_server_requests_total", Help: "Requests sent to the server.",
		}, label),
		replies: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: prefix + "_server_replies_total",
			Help: "Replies from the server that match a request. One from an address that is none of the servers' " +
				"(a Service may translate it) counts for all.",
		}, label),
		up: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: prefix + "_server_up", Help: "Whether the server answers (0: it left many requests in a row unanswered).",
		}, label),
		seen: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: prefix + "_server_last_reply_timestamp_seconds", Help: "When the server last answered; 0: never.",
		}, label),
	}
}

// Collectors are the metrics to register.
func (m *Metrics) Collectors() []prometheus.Collector {
	return []prometheus.Collector{m.requests, m.replies, m.up, m.seen}
}
