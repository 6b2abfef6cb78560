package relay

import (
	"os"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/tinkerbell/stack/internal/envdoc"
	"github.com/tinkerbell/stack/pkg/relay/server"
)

const reference = "../../docs/reference/dhcp-relay.md"

// TestDocumentAgreesWithCode: the tables of metrics are made from the code, by "make generate", and every drop reason
// has a row.
func TestDocumentAgreesWithCode(t *testing.T) {
	b, err := os.ReadFile(reference)
	if err != nil {
		t.Fatal(err)
	}
	text := string(b)
	seen := map[string]bool{}
	for d := None + 1; d < numDrops; d++ {
		if d.String() == "" || seen[d.String()] || !strings.Contains(text, "`"+d.String()+"`") {
			t.Errorf("drop reason %d (%q) has no row, or is there twice", d, d)
		}
		seen[d.String()] = true
	}
	tables := map[string]string{}
	for name, family := range map[string]struct {
		config Config
		traits *traits
	}{
		"metrics":           {Config{}, &traits4},
		"metrics of DHCPv6": {Config{IPv6: true}, &traits6},
	} {
		registry := prometheus.NewRegistry()
		family.config.Registerer, family.config.Listeners = registry, []Listener{{Name: "macvlan0"}}
		m := newMetrics(&family.config, family.traits, func() float64 { return 0 })
		server.New(server.Config{Names: []string{"smee"}, Metrics: m.servers})
		m.open("macvlan0", true)
		tables[name] = envdoc.Metrics(registry, family.traits.prefix+"_")
		problems, err := testutil.GatherAndLint(registry)
		if err != nil {
			t.Fatal(err)
		}
		for _, problem := range problems {
			t.Errorf("metric %s: %s", problem.Metric, problem.Text)
		}
	}
	envdoc.Check(t, reference, *update, tables)
}
