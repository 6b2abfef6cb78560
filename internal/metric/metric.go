// Package metric makes the metrics of a package, and names the values of their labels.
package metric

import (
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// Set makes metrics whose names begin alike, and that have some labels in common.
type Set struct {
	factory promauto.Factory
	prefix  string
	labels  []string
	made    []interface{ DeletePartialMatch(prometheus.Labels) int }
}

// New begins a set. Its metrics are registered as they are made, but with a nil Registerer they are not.
func New(r prometheus.Registerer, prefix string, labels ...string) *Set {
	return &Set{factory: promauto.With(r), prefix: prefix + "_", labels: labels}
}

// Counter makes counters with the set's labels and others.
func (s *Set) Counter(name, help string, labels ...string) *prometheus.CounterVec {
	return add(s, s.factory.NewCounterVec(prometheus.CounterOpts{Name: s.prefix + name, Help: help}, s.with(labels)))
}

// Gauge makes gauges.
func (s *Set) Gauge(name, help string, labels ...string) *prometheus.GaugeVec {
	return add(s, s.factory.NewGaugeVec(prometheus.GaugeOpts{Name: s.prefix + name, Help: help}, s.with(labels)))
}

// GaugeFunc makes a gauge that is read when it is asked for.
func (s *Set) GaugeFunc(name, help string, read func() float64) {
	s.factory.NewGaugeFunc(prometheus.GaugeOpts{Name: s.prefix + name, Help: help}, read)
}

// CounterFunc is GaugeFunc for a counter.
func (s *Set) CounterFunc(name, help string, read func() uint64) {
	s.factory.NewCounterFunc(prometheus.CounterOpts{Name: s.prefix + name, Help: help},
		func() float64 { return float64(read()) })
}

// Histogram makes histograms with upper bounds.
func (s *Set) Histogram(name, help string, bounds ...float64) *prometheus.HistogramVec {
	return add(s, s.factory.NewHistogramVec(prometheus.HistogramOpts{
		Name: s.prefix + name, Help: help, Buckets: bounds,
	}, s.labels))
}

func (s *Set) with(labels []string) []string { return slices.Concat(s.labels, labels) }

func add[V interface{ DeletePartialMatch(prometheus.Labels) int }](s *Set, vec V) V {
	s.made = append(s.made, vec)
	return vec
}

// Forget removes what the set's metrics have of a value of their first label.
func (s *Set) Forget(value string) {
	for _, vec := range s.made {
		vec.DeletePartialMatch(prometheus.Labels{s.labels[0]: value})
	}
}

// Enum has the names of an enum's values, which are the values of a metric's label and have rows in a document. None is
// the name of what is not counted.
type Enum[E ~uint8] []string

// None is the name of a value that has no counter.
const None = "none"

// Name is a value's name.
func (n Enum[E]) Name(e E) string {
	if int(e) >= len(n) {
		return "unknown"
	}
	return n[e]
}

// Counters are those of one route, by value. All of them exist from now on, so that the first event of a kind is seen
// as an increase.
func (n Enum[E]) Counters(vec *prometheus.CounterVec, route string) []prometheus.Counter {
	counters := make([]prometheus.Counter, len(n))
	for i, name := range n {
		if name != None {
			counters[i] = vec.WithLabelValues(route, name)
		}
	}
	return counters
}

// ByResult are counters of what goes well or fails: those of the results ok and error.
type ByResult [2]prometheus.Counter

// Results are the counters by result, of some values of the labels before it.
func Results(vec *prometheus.CounterVec, before ...string) ByResult {
	return ByResult{
		vec.WithLabelValues(append(slices.Clone(before), "ok")...), vec.WithLabelValues(append(before, "error")...),
	}
}

// Count counts by an error, or by none.
func (r ByResult) Count(err error) {
	if err != nil {
		r[1].Inc()
		return
	}
	r[0].Inc()
}
