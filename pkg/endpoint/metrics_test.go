package endpoint

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// Nothing of a route is left in the metrics when it is forgotten.
func TestForget(t *testing.T) {
	registry := prometheus.NewRegistry()
	m := NewMetrics(registry)
	m.route("gone").endpoints(1, 1)
	m.Forget("gone")
	if n, err := testutil.GatherAndCount(registry); err != nil || n != 0 {
		t.Errorf("%d are left, %v", n, err)
	}
}
