package relay

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/tinkerbell/stack/pkg/relay/server"
)

const docs = "../../docs/dhcp-relay.md"

// TestDocsNameEveryReasonAndMetric keeps the tables of docs/dhcp-relay.md complete.
func TestDocsNameEveryReasonAndMetric(t *testing.T) {
	b, err := os.ReadFile(docs)
	if err != nil {
		t.Fatal(err)
	}
	text := string(b)
	for d := None + 1; d < numDrops; d++ {
		if d.String() == "" || d.of(false) && !strings.Contains(text, "`"+d.String()+"`") {
			t.Errorf("drop reason %d (%q) has no row", d, d)
		}
	}
	registry := prometheus.NewRegistry()
	m, err := newMetrics(&Config{Registerer: registry, Listeners: []Listener{{Name: "macvlan0"}}}, &traits4, func() float64 { return 0 }, func() float64 { return 0 })
	if err != nil {
		t.Fatal(err)
	}
	server.New(server.Config{Names: []string{"smee"}, Metrics: m.servers})
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

// TestDocsNameTestsThatExist: a row that says which test proves it must be true.
func TestDocsNameTestsThatExist(t *testing.T) {
	b, err := os.ReadFile(docs)
	if err != nil {
		t.Fatal(err)
	}
	var source strings.Builder
	for _, directory := range []string{
		".", "admit", "pending", "server", "../dhcp", "../dhcp6", "../hostlink", "../frame", "../../cmd/dhcp-relay",
		"../../test/e2e/clients", "../../test/e2e/journey", "../../test/e2e/machine",
	} {
		entries, err := os.ReadDir(directory)
		if err != nil {
			t.Fatal(err)
		}
		for _, entry := range entries {
			if strings.HasSuffix(entry.Name(), "_test.go") {
				text, err := os.ReadFile(directory + "/" + entry.Name())
				if err != nil {
					t.Fatal(err)
				}
				source.Write(text)
			}
		}
	}
	for _, match := range regexp.MustCompile("`(Test[A-Za-z0-9]+)[/`]").FindAllStringSubmatch(string(b), -1) {
		if !strings.Contains(source.String(), "func "+match[1]+"(t *testing.T)") {
			t.Errorf("no test %s", match[1])
		}
	}
}
