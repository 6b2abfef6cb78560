package hardware

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tinkerbell/stack/internal/metric"
)

// What became of an Event.
const (
	sent    = "sent"
	failed  = "failed"  // the API did not take it: it is tried again
	limited = "limited" // a step too many
)

// Metrics are what the watcher and its Events count.
type Metrics struct {
	watching *prometheus.GaugeVec
	objects  prometheus.Gauge
	errors   *prometheus.CounterVec
	events   *prometheus.CounterVec
}

// NewMetrics registers the metrics; a nil registry leaves them unregistered.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	set := metric.New(registry, "stack_boot_hardware")
	m := &Metrics{
		watching: set.Gauge("watching", "Whether the Hardware objects of the namespace are known and followed.",
			"hardware_namespace"),
		objects: set.Gauge("objects", "Hardware objects that are known.").WithLabelValues(),
		errors: set.Counter("errors_total", "Times that reading or watching Hardware objects failed.",
			"hardware_namespace"),
		events: set.Counter("events_total",
			"Events for Hardware objects, by reason and what became of them: sent, failed (it is tried again), limited.",
			"reason", "result"),
	}
	for _, reason := range []string{reasonStuck, reasonStep, reasonBooted} {
		for _, result := range []string{sent, failed, limited} {
			m.events.WithLabelValues(reason, result)
		}
	}
	return m
}
