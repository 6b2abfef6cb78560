// Package report tells operators' own engines of boots: metrics for Prometheus, and a log line for each step, each
// machine that is stuck and each boot's end. No metric has a MAC, an address or a name as its label, and the log is
// bounded.
package report

import (
	"cmp"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"

	"github.com/tinkerbell/stack/internal/metric"
	"github.com/tinkerbell/stack/pkg/boot"
	"github.com/tinkerbell/stack/pkg/boot/journal"
)

// Bounds of the log.
const (
	linesPerSecond, linesAtOnce = 50, 1000
	// tellEach is how often is told how many lines were left out.
	tellEach = time.Minute
	// textRoom is what a line has of one text of a machine, in bytes.
	textRoom = 256
)

// Options are what a reporter needs.
type Options struct {
	// Counts are the machines at the moment: a journal's Counts.
	Counts func() []journal.Count
	// Logger may be nil.
	Logger *slog.Logger
	// Registry may be nil.
	Registry prometheus.Registerer
}

// Reporter counts and logs what changes in a journal.
type Reporter struct {
	log      *slog.Logger
	steps    *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
	stuck    *prometheus.CounterVec
	boots    *prometheus.CounterVec
	unlogged prometheus.Counter

	lines   *rate.Limiter
	leftOut int       // lines since toldAt
	toldAt  time.Time // when it was logged how many
}

// New makes a reporter and registers its metrics.
func New(o Options) *Reporter {
	set, ofSteps := metric.New(o.Registry, "stack_boot"), metric.New(o.Registry, "stack_boot_step", "step")
	r := &Reporter{
		log: cmp.Or(o.Logger, slog.New(slog.DiscardHandler)), lines: rate.NewLimiter(linesPerSecond, linesAtOnce),
		steps: set.Counter("steps_total", "Steps of boots that ended, by result: ok, failed.", "step", "result"),
		seconds: ofSteps.Histogram("duration_seconds", "How long steps of boots took.",
			.01, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300, 900),
		stuck: set.Counter("stuck_total", "Times that a machine was found to be stuck, by step and cause.",
			"step", "cause"),
		boots: set.Counter("boots_total", "Boots that ended, by the state at their end.", "state"),
		unlogged: set.Counter("unlogged_total", "Log lines about boots that were left out, being too many.").
			WithLabelValues(),
	}
	for _, state := range []journal.State{
		journal.Booted, journal.Installed, journal.Stuck, journal.StateFailed, journal.Quiet,
	} {
		r.boots.WithLabelValues(string(state))
	}
	if o.Registry != nil {
		o.Registry.MustRegister(machines(o.Counts))
	}
	return r
}

// machines is a metric that is counted when it is asked for.
type machines func() []journal.Count

var machinesMetric = prometheus.NewDesc("stack_boot_machines",
	"Machines that are known, by state and the step that they are at.", []string{"state", "step"}, nil)

// Describe implements prometheus.Collector.
func (machines) Describe(out chan<- *prometheus.Desc) { out <- machinesMetric }

// Collect implements prometheus.Collector.
func (m machines) Collect(out chan<- prometheus.Metric) {
	for _, c := range m() {
		out <- prometheus.MustNewConstMetric(machinesMetric, prometheus.GaugeValue, float64(c.Machines),
			string(c.State), string(c.Step))
	}
}

// Changed counts and logs a change of the journal; it may be its Options.Changed.
func (r *Reporter) Changed(c journal.Change) {
	switch c.Kind {
	case journal.StepEnded:
		seconds := c.Step.End.Sub(c.Step.Begin).Seconds()
		r.steps.WithLabelValues(string(c.Step.Step), string(c.Step.Result)).Inc()
		r.seconds.WithLabelValues(string(c.Step.Step)).Observe(seconds)
		if r.takeLine(c.At) {
			r.about(c).Info("boot step", "step", c.Step.Step, "result", c.Step.Result, "seconds", seconds,
				"from", clean(c.Step.From), "text", clean(c.Step.Text))
		}
	case journal.CauseChanged:
		if cause := c.Boot.Cause; c.Boot.IsStuck() {
			r.stuck.WithLabelValues(string(c.Boot.At), cause.Name).Inc()
			if r.takeLine(c.At) {
				r.about(c).Warn("machine is stuck", "step", c.Boot.At, "cause", cause.Name,
					"text", clean(cause.Text), "remedy", clean(cause.Remedy))
			}
		}
	case journal.BootEnded:
		r.boots.WithLabelValues(string(c.Boot.State)).Inc()
		if r.takeLine(c.At) {
			r.about(c).Info("boot ended", "step", c.Boot.At, "state", c.Boot.State,
				"seconds", c.Boot.End.Sub(c.Boot.Begin).Seconds())
		}
	case journal.StateChanged: // steps, causes and the end tell of it
	}
}

// takeLine takes room in the log for a line, false where there is none, and at times logs how many were left out.
func (r *Reporter) takeLine(now time.Time) bool {
	if !r.lines.AllowN(now, 1) {
		r.leftOut++
		r.unlogged.Inc()
		return false
	}
	if r.leftOut > 0 && now.Sub(r.toldAt) >= tellEach {
		r.log.Warn("boot lines were left out", "lines", r.leftOut)
		r.leftOut, r.toldAt = 0, now
	}
	return true
}

// about is a logger for lines about a change's machine.
func (r *Reporter) about(c journal.Change) *slog.Logger {
	log := r.log.With("mac", c.Machine.MAC)
	if c.Machine.Address.IsValid() {
		log = log.With("address", c.Machine.Address)
	}
	if c.Machine.Name != "" {
		log = log.With("name", clean(c.Machine.Name))
	}
	return log
}

// clean makes a text of a machine fit for the log.
func clean(text string) string { return boot.CleanCut(text, textRoom) }
