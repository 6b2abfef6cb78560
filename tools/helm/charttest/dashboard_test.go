package charttest

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/grafana/grafana-foundation-sdk/go/cog/plugins"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
	corev1 "k8s.io/api/core/v1"
)

// TestDashboardIsGrafanas reads the dashboard by Grafana's own types: an unknown field, a wrong type or a value that
// Grafana does not know is an error. What its queries answer, make e2e-kube asks Prometheus.
func TestDashboardIsGrafanas(t *testing.T) {
	plugins.RegisterDefaultPlugins()
	text, err := os.ReadFile(chart + "/files/dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	var d dashboard.Dashboard
	if err := d.UnmarshalJSONStrict(text); err != nil {
		t.Fatalf("Grafana does not take it: %v", err)
	}
	if err := d.Validate(); err != nil {
		t.Errorf("Grafana finds it wrong: %v", err)
	}
	if err := d.UnmarshalJSONStrict([]byte(strings.Replace(string(text), `"gridPos"`, `"gridPosition"`, 1))); err == nil {
		t.Error("a misspelt field is taken")
	}
}

// TestDashboardIsDrawn finds what Grafana would take and not show well: panels that lie over each other or beside the
// grid, that have one number, no title, or no query.
func TestDashboardIsDrawn(t *testing.T) {
	text, err := os.ReadFile(chart + "/files/dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	var d struct {
		Panels []struct {
			ID                int
			Type, Title, Unit string
			GridPos           struct{ X, Y, W, H int }
			Targets           []struct{ Expr, LegendFormat string }
		}
	}
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	ids, cells := map[int]string{}, map[string]string{}
	for _, p := range d.Panels {
		if other, ok := ids[p.ID]; ok || p.Title == "" {
			t.Errorf("panel %d is %q and %q", p.ID, other, p.Title)
		}
		ids[p.ID] = p.Title
		if p.GridPos.X < 0 || p.GridPos.X+p.GridPos.W > 24 || p.GridPos.H < 1 {
			t.Errorf("%s is beside the grid: %+v", p.Title, p.GridPos)
		}
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				cell := fmt.Sprint(x, ",", y)
				if other, ok := cells[cell]; ok {
					t.Fatalf("%s lies over %s", p.Title, other)
				}
				cells[cell] = p.Title
			}
		}
		if p.Type == "row" {
			continue
		}
		if len(p.Targets) == 0 {
			t.Errorf("%s asks nothing", p.Title)
		}
		for _, target := range p.Targets {
			if target.Expr == "" || target.LegendFormat == "" {
				t.Errorf("%s has a query without expression or legend", p.Title)
			}
		}
	}
}

// TestDashboardIsABlockOfLines: a diff of the ConfigMap shows the lines that changed, and the dashboard is the file's, but for
// its UID and title.
func TestDashboardIsABlockOfLines(t *testing.T) {
	file, err := os.ReadFile(chart + "/files/dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	out := rendersFrom(t, "publicIP: 192.0.2.2\nmonitoring: {dashboard: {enabled: true}}\n")
	if text := strings.Join(out.documents(), "\n"); !strings.Contains(text, ".json: |\n    {\n      \"title\": \"Tinkerbell stack ") {
		t.Error("the dashboard is no block")
	}
	var configMap corev1.ConfigMap
	out.object(t, "ConfigMap", "-dashboard", &configMap)
	for _, got := range configMap.Data {
		want, lines := strings.Split(strings.TrimSpace(string(file)), "\n"), strings.Split(strings.TrimSpace(got), "\n")
		if len(lines) != len(want) || !json.Valid([]byte(got)) {
			t.Fatalf("%d lines, the file has %d", len(lines), len(want))
		}
		for i := range lines {
			if i != 1 && i != 2 && lines[i] != want[i] {
				t.Errorf("line %d is %q, want %q", i+1, lines[i], want[i])
			}
		}
	}
}
