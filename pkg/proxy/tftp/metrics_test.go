package tftp

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
)

// The names follow Prometheus's conventions, and a route has all its series from the beginning.
func TestMetrics(t *testing.T) {
	r := prometheus.NewPedanticRegistry()
	m := NewMetrics(r)
	m.of("a")
	m.of("b")
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	problems, err := promlint.NewWithMetricFamilies(families).Lint()
	if err != nil || len(problems) > 0 {
		t.Errorf("%v, %v", problems, err)
	}
	for _, f := range families {
		if len(f.GetMetric())%2 != 0 || len(f.GetMetric()) < 2 {
			t.Errorf("%s has %d series for two routes", f.GetName(), len(f.GetMetric()))
		}
	}
}
