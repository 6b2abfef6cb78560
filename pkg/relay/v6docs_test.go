package relay

import (
	"os"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/tinkerbell/stack/pkg/relay/server"
)

// TestDocsNameEveryReasonAndMetric6 keeps the section of docs/dhcp-relay.md on DHCPv6 complete.
func TestDocsNameEveryReasonAndMetric6(t *testing.T) {
	b, err := os.ReadFile("../../docs/dhcp-relay.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, found := strings.Cut(string(b), "\n## DHCPv6\n")
	if !found {
		t.Fatal("there is no section on DHCPv6")
	}
	seen := map[string]bool{}
	for d := None + 1; d < numDrops; d++ {
		if !d.of(true) {
			continue
		}
		if d.String() == "" || seen[d.String()] || !strings.Contains(text, "`"+d.String()+"`") {
			t.Errorf("drop reason %d (%q) has no row, or is there twice", d, d)
		}
		seen[d.String()] = true
	}
	registry := prometheus.NewRegistry()
	none := func() float64 { return 0 }
	m, err := newMetrics(&Config{IPv6: true, Registerer: registry, Listeners: []Listener{{Name: "macvlan0"}}}, &traits6, none, none)
	if err != nil {
		t.Fatal(err)
	}
	server.New(server.Config{Names: []string{"kea"}, Metrics: m.servers})
	m.open("macvlan0", true)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if !strings.Contains(text, "`"+family.GetName()+"`") {
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
