package server

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tinkerbell/stack/internal/metric"
)

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

// NewMetrics registers metrics whose names begin with a prefix.
func NewMetrics(r prometheus.Registerer, prefix string) *Metrics {
	s := metric.New(r, prefix+"_server", "server")
	return &Metrics{
		requests: s.Counter("requests_total", "Requests sent to the server."),
		replies: s.Counter("replies_total", "Replies from the server that match a request. One from an address that is "+
			"none of the servers' (a Service may translate it) counts for all."),
		up:   s.Gauge("up", "Whether the server answers (0: it left many requests in a row unanswered)."),
		seen: s.Gauge("last_reply_timestamp_seconds", "When the server last answered; 0: never."),
	}
}
