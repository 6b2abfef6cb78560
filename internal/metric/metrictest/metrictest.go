// Package metrictest holds in tests the metrics of a package to Prometheus' conventions and to its document.
package metrictest

import (
	"os"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/tinkerbell/stack/internal/metric"
)

// Routes reports metrics whose names break Prometheus' conventions, and those that do not have all their series from
// the beginning. Register registers the metrics, and returns a function that makes the series of a route.
func Routes(t *testing.T, register func(prometheus.Registerer) func(route string)) {
	t.Helper()
	r := prometheus.NewPedanticRegistry()
	of := register(r)
	of("a")
	of("b")
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

// Documented reports names that a document does not mention.
func Documented(t *testing.T, document string, names ...string) {
	t.Helper()
	text, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if name != metric.None && !strings.Contains(string(text), "`"+name+"`") {
			t.Errorf("%s does not mention %s", document, name)
		}
	}
}
