package artifacts

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tinkerbell/stack/internal/metric"
)

// Why a file was not served: the label of stack_proxy_files_missed_total.
type miss uint8

const (
	missName      miss = iota // no such file, or a name that is never served
	missDamaged               // its size is not the manifest's
	missDirectory             // the directory is not there
	missError                 // descriptors, or the disk
)

var misses = metric.Enum[miss]{"name", "damaged", "directory", "error"}

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
	s := metric.New(r, "stack_proxy_files", "route")
	return &Metrics{
		requests: s.Counter("requests_total",
			"Requests for a file that is there, by file; files that were put there by hand have no name here.", "file"),
		sent:    s.Counter("sent_bytes_total", "Bytes of files that were sent, by file.", "file"),
		seconds: s.Counter("sending_seconds_total", "Time that sending took, by file.", "file"),
		misses:  s.Counter("missed_total", "Requests without a file for an answer, by reason.", "reason"),
		waiting: s.Gauge("waiting",
			"Requests that wait because the disk, or the server of a network file system, has enough to do, or hangs."),
	}
}

func (m *Metrics) served(route, file string, bytes int64, took time.Duration) {
	m.requests.WithLabelValues(route, file).Inc()
	m.sent.WithLabelValues(route, file).Add(float64(bytes))
	m.seconds.WithLabelValues(route, file).Add(took.Seconds())
}

func (m *Metrics) missed(route string, why miss) {
	m.misses.WithLabelValues(route, misses.Name(why)).Inc()
}
