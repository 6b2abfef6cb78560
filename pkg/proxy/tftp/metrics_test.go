package tftp

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tinkerbell/stack/internal/metric/metrictest"
)

// The names follow Prometheus's conventions, a route has all its series from the beginning, and the manual has a row for
// each reason.
func TestMetrics(t *testing.T) {
	metrictest.Routes(t, func(r prometheus.Registerer) func(string) {
		m := NewMetrics(r)
		return func(route string) { m.of(route) }
	})
	metrictest.Documented(t, "../../../docs/tftp.md", drops...)
	metrictest.Documented(t, "../../../docs/tftp.md", endings...)
}
