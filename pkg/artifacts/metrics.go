package artifacts

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Why a file was not served: the label of stack_proxy_files_missed_total.
type miss uint8

const (
	missName      miss = iota // no such file, or a name that is never served
	missDamaged               // its size is not the manifest's
	missDirectory             // the directory is not there
	missError                 // descriptors, or the disk
	misses
)

func (m miss) String() string { return [...]string{"name", "damaged", "directory", "error"}[m] }

// Metrics are the metrics of serving, by route.
type Metrics struct {
	requests *prometheus.CounterVec
	sent     *prometheus.CounterVec
	seconds  *prometheus.CounterVec
	misses   *prometheus.CounterVec
	waiting  *prometheus.GaugeVec
}

// NewMetrics registers the metrics.
func NewMetrics(r prometheus.Registerer) *Metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "stack_proxy", Subsystem: "files", Name: name, Help: help,
		}, append([]string{"route"}, labels...))
	}
	m := &Metrics{
		requests: counter("requests_total",
			"Requests for a file that is there, by file; files that were put there by hand have no name here.", "file"),
		sent:    counter("sent_bytes_total", "Bytes of files that were sent, by file.", "file"),
		seconds: counter("sending_seconds_total", "Time that sending took, by file.", "file"),
		misses:  counter("missed_total", "Requests without a file for an answer, by reason.", "reason"),
	}
	m.waiting = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Namespace: "stack_proxy", Subsystem: "files", Name: "waiting",
		Help: "Requests that wait because the disk, or the server of a network file system, has enough to do, or hangs.",
	}, []string{"route"})
	r.MustRegister(m.requests, m.sent, m.seconds, m.misses, m.waiting)
	return m
}

// waits is the gauge of a route's requests that wait for the disk.
func (m *Metrics) waits(route string) prometheus.Gauge {
	if m == nil {
		return nil
	}
	return m.waiting.WithLabelValues(route)
}

func (m *Metrics) served(route, file string, bytes int64, took time.Duration) {
	if m != nil {
		m.requests.WithLabelValues(route, file).Inc()
		m.sent.WithLabelValues(route, file).Add(float64(bytes))
		m.seconds.WithLabelValues(route, file).Add(took.Seconds())
	}
}

func (m *Metrics) missed(route string, why miss) {
	if m != nil {
		m.misses.WithLabelValues(route, why.String()).Inc()
	}
}
