package fetch

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tinkerbell/stack/internal/metric"
)

// Metrics are the metrics of fetching, by set.
type Metrics struct {
	state   *prometheus.GaugeVec
	success *prometheus.GaugeVec
	checks  *prometheus.CounterVec
	retries *prometheus.CounterVec
	bytes   *prometheus.CounterVec
	healed  prometheus.Counter
	files   prometheus.Gauge
	size    prometheus.Gauge
	switchd prometheus.Gauge
	reloads metric.ByResult
	last    prometheus.Gauge
}

// NewMetrics registers the metrics.
func NewMetrics(r prometheus.Registerer) *Metrics {
	s := metric.New(r, "stack_proxy_artifacts")
	m := &Metrics{
		state: s.Gauge("set_state", "1 for the state that a set is in, 0 for the others.", "set", "state"),
		success: s.Gauge("last_success_timestamp_seconds",
			"When a check last found, or made, the set's files as the release has them.", "set"),
		checks:  s.Counter("checks_total", "Checks of a set, by the state they ended in.", "set", "state"),
		retries: s.Counter("retries_total", "Attempts that were repeated, by why.", "set", "reason"),
		bytes:   s.Counter("downloaded_bytes_total", "Bytes downloaded.", "set"),
		healed: s.Counter("damaged_files_total", "Files that were found damaged, and taken away.").
			WithLabelValues(),
		files:   s.Gauge("files", "Files that are served.").WithLabelValues(),
		size:    s.Gauge("size_bytes", "Size of the files that are served.").WithLabelValues(),
		switchd: s.Gauge("switched_timestamp_seconds", "When what is served was last replaced.").WithLabelValues(),
		reloads: metric.Results(s.Counter("reloads_total", "Changes of the settings file, by result: ok or error. "+
			"The old settings stay in force after an error.", "result")),
		last: s.Gauge("last_reload_successful", "Whether the last change of the settings file was taken: 1 or 0.").
			WithLabelValues(),
	}
	m.last.Set(1) // else there would be no start
	return m
}

func (m *Metrics) is(set string, s State) {
	for each := range states {
		value := 0.0
		if each == s {
			value = 1
		}
		m.state.WithLabelValues(set, each.String()).Set(value)
	}
}

// forget takes away what tells how a set is now, and no longer is.
func (m *Metrics) forget(set string) {
	m.state.DeletePartialMatch(prometheus.Labels{"set": set})
	m.success.DeleteLabelValues(set)
}

func (m *Metrics) reloaded(err error) {
	m.reloads.Count(err)
	m.last.Set(1)
	if err != nil {
		m.last.Set(0)
	}
}

func (m *Metrics) checked(set string, s State) {
	m.checks.WithLabelValues(set, s.String()).Inc()
	if s == StateCurrent {
		m.success.WithLabelValues(set).Set(float64(time.Now().Unix()))
	}
}
