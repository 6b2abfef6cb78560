package metric

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// TestSet has the names and labels of a set's metrics, and what is left when a route is forgotten.
func TestSet(t *testing.T) {
	r := prometheus.NewPedanticRegistry()
	s := New(r, "stack_x", "route")
	counter, gauge := s.Counter("sent_total", "Sent.", "to"), s.Gauge("open", "Open.")
	histogram := s.Histogram("seconds", "Time.", 1, 2)
	names := Enum[uint8]{None, "a", "b"}
	counters := names.Counters(counter, "r")
	if counters[0] != nil || names.Name(2) != "b" || names.Name(3) != "unknown" {
		t.Errorf("got %v, %s, %s", counters[0], names.Name(2), names.Name(3))
	}
	counters[1].Inc()
	gauge.WithLabelValues("r").Set(7)
	histogram.WithLabelValues("r").Observe(1.5)
	counter.WithLabelValues("other", "a")
	s.Forget("other")
	const want = `# HELP stack_x_open Open.
# TYPE stack_x_open gauge
stack_x_open{route="r"} 7
# HELP stack_x_seconds Time.
# TYPE stack_x_seconds histogram
stack_x_seconds_bucket{route="r",le="1"} 0
stack_x_seconds_bucket{route="r",le="2"} 1
stack_x_seconds_bucket{route="r",le="+Inf"} 1
stack_x_seconds_sum{route="r"} 1.5
stack_x_seconds_count{route="r"} 1
# HELP stack_x_sent_total Sent.
# TYPE stack_x_sent_total counter
stack_x_sent_total{route="r",to="a"} 1
stack_x_sent_total{route="r",to="b"} 0
`
	if err := testutil.GatherAndCompare(r, strings.NewReader(want)); err != nil {
		t.Error(err)
	}
	New(nil, "stack_x").Counter("sent_total", "Not registered.").WithLabelValues().Inc()
}
