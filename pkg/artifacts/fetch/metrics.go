package fetch

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
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
	reloads *prometheus.CounterVec
	last    prometheus.Gauge
}

// NewMetrics registers the metrics.
func NewMetrics(r prometheus.Registerer) *Metrics {
	gauge := func(name, help string) prometheus.GaugeOpts {
		return prometheus.GaugeOpts{Namespace: "stack_proxy", Subsystem: "artifacts", Name: name, Help: help}
	}
	counter := func(name, help string) prometheus.CounterOpts { return prometheus.CounterOpts(gauge(name, help)) }
	m := &Metrics{
		state: prometheus.NewGaugeVec(gauge("set_state", "1 for the state that a set is in, 0 for the others."),
			[]string{"set", "state"}),
		success: prometheus.NewGaugeVec(gauge("last_success_timestamp_seconds",
			"When a check last found, or made, the set's files as the release has them."), []string{"set"}),
		checks: prometheus.NewCounterVec(counter("checks_total", "Checks of a set, by the state they ended in."),
			[]string{"set", "state"}),
		retries: prometheus.NewCounterVec(counter("retries_total", "Attempts that were repeated, by why."),
			[]string{"set", "reason"}),
		bytes:   prometheus.NewCounterVec(counter("downloaded_bytes_total", "Bytes downloaded."), []string{"set"}),
		healed:  prometheus.NewCounter(counter("damaged_files_total", "Files that were found damaged, and taken away.")),
		files:   prometheus.NewGauge(gauge("files", "Files that are served.")),
		size:    prometheus.NewGauge(gauge("size_bytes", "Size of the files that are served.")),
		switchd: prometheus.NewGauge(gauge("switched_timestamp_seconds", "When what is served was last replaced.")),
	}
	m.reloads = prometheus.NewCounterVec(counter("reloads_total",
		"Changes of the settings file, by result: ok or error. The old settings stay in force after an error."),
		[]string{"result"})
	for _, result := range []string{"ok", "error"} {
		m.reloads.WithLabelValues(result)
	}
	m.last = prometheus.NewGauge(gauge("last_reload_successful",
		"Whether the last change of the settings file was taken: 1 or 0."))
	m.last.Set(1) // else there would be no start
	r.MustRegister(m.state, m.success, m.checks, m.retries, m.bytes, m.healed, m.files, m.size, m.switchd, m.reloads,
		m.last)
	return m
}

func (m *Metrics) is(set string, s State) {
	if m == nil {
		return
	}
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
	if m != nil {
		m.state.DeletePartialMatch(prometheus.Labels{"set": set})
		m.success.DeleteLabelValues(set)
	}
}

func (m *Metrics) reloaded(err error) {
	switch {
	case m == nil:
	case err != nil:
		m.last.Set(0)
		m.reloads.WithLabelValues("error").Inc()
	default:
		m.last.Set(1)
		m.reloads.WithLabelValues("ok").Inc()
	}
}

func (m *Metrics) checked(set string, s State) {
	if m == nil {
		return
	}
	m.checks.WithLabelValues(set, s.String()).Inc()
	if s == StateCurrent {
		m.success.WithLabelValues(set).Set(float64(time.Now().Unix()))
	}
}

func (m *Metrics) retried(set string, err error) {
	if m != nil {
		m.retries.WithLabelValues(set, stateOf(err).String()).Inc()
	}
}

func (m *Metrics) downloaded(set string, n int) {
	if m != nil {
		m.bytes.WithLabelValues(set).Add(float64(n))
	}
}

func (m *Metrics) damaged() {
	if m != nil {
		m.healed.Inc()
	}
}

func (m *Metrics) serving(files int, bytes int64, since time.Time) {
	if m != nil {
		m.files.Set(float64(files))
		m.size.Set(float64(bytes))
		m.switchd.Set(float64(since.Unix()))
	}
}
