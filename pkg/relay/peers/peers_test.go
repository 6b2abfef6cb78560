package peers

import (
	"os"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/tinkerbell/stack/pkg/relay/group"
)

// TestNoGroupOfOtherListeners: a listener that replicas do not share has none.
func TestNoGroupOfOtherListeners(t *testing.T) {
	p, err := New(Config{Listeners: []string{"lan0"}})
	if err != nil {
		t.Fatal(err)
	}
	if p.Group("lan0") == nil || p.Group("lan1") != nil {
		t.Error("want a group of lan0 and none of lan1")
	}
}

// TestDocsNameEveryMetric keeps the tables of docs/dhcp-relay.md complete.
func TestDocsNameEveryMetric(t *testing.T) {
	b, err := os.ReadFile("../../../docs/dhcp-relay.md")
	if err != nil {
		t.Fatal(err)
	}
	registry := prometheus.NewRegistry()
	m, err := newMetrics(registry)
	if err != nil {
		t.Fatal(err)
	}
	m.show("lan0", group.State{}, group.View{})
	for refusal := range group.NumRefusals {
		m.refused.WithLabelValues("lan0", refusal.String()).Inc()
		if refusal != group.Accepted && !strings.Contains(string(b), "`"+refusal.String()+"`") {
			t.Errorf("refusal %v is not explained", refusal)
		}
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if !strings.Contains(string(b), "`"+family.GetName()+"`") {
			t.Errorf("metric %s has no row", family.GetName())
		}
	}
	problems, err := testutil.GatherAndLint(registry)
	if err != nil {
		t.Fatal(err)
	}
	for _, problem := range problems {
		t.Errorf("metric %s: %s", problem.Metric, problem.Text)
	}
}
