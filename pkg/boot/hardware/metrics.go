package hardware

import "github.com/prometheus/client_golang/prometheus"

// What became of an Event.
const (
	sent    = "sent"
	failed  = "failed"  // the API did not take it
	limited = "limited" // one too many: of this object, of all, or while the API was slow
)

// Metrics are what the watcher and its Events count.
type Metrics struct {
	watching *prometheus.GaugeVec
	objects  prometheus.Gauge
	left     prometheus.Counter
	errors   *prometheus.CounterVec
	events   *prometheus.CounterVec
}

// NewMetrics registers the metrics; a nil registry leaves them unregistered.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	m := &Metrics{
		watching: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "stack_boot_hardware_watching",
			Help: "Whether the Hardware objects of the namespace are known and followed.",
		}, []string{"hardware_namespace"}),
		objects: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "stack_boot_hardware_objects", Help: "Hardware objects that are known.",
		}),
		left: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "stack_boot_hardware_left_out_total", Help: "Hardware objects that there was no room for.",
		}),
		errors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "stack_boot_hardware_errors_total",
			Help: "Times that reading or watching Hardware objects failed.",
		}, []string{"hardware_namespace"}),
		events: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "stack_boot_hardware_events_total",
			Help: "Events for Hardware objects, by reason and what became of them: sent, failed, limited.",
		}, []string{"reason", "result"}),
	}
	for _, reason := range []string{reasonStuck, reasonStep, reasonBooted} {
		for _, result := range []string{sent, failed, limited} {
			m.events.WithLabelValues(reason, result)
		}
	}
	if registry != nil {
		registry.MustRegister(m.watching, m.objects, m.left, m.errors, m.events)
	}
	return m
}
