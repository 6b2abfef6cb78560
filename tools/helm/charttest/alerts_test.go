package charttest

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// rules is the PrometheusRule's spec, as Prometheus takes it.
func rules(t *testing.T) (spec any, alerts []string) {
	t.Helper()
	for _, o := range objects(t, render(t, "--set", "monitoring.prometheusRule.enabled=true")) {
		if o.kind() != "PrometheusRule" {
			continue
		}
		text, err := yaml.Marshal(o["spec"])
		if err != nil {
			t.Fatal(err)
		}
		var parsed struct {
			Groups []struct{ Rules []struct{ Alert string } }
		}
		if err := yaml.Unmarshal(text, &parsed); err != nil {
			t.Fatal(err)
		}
		for _, rule := range parsed.Groups[0].Rules {
			alerts = append(alerts, rule.Alert)
		}
		return o["spec"], alerts
	}
	t.Fatal("no PrometheusRule")
	return nil, nil
}

// TestAlertRules stages a fault for each alert and asks promtool which fire.
func TestAlertRules(t *testing.T) {
	promtool := tool(t, "promtool")
	spec, alerts := rules(t)
	tests, err := os.ReadFile("testdata/alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, alert := range alerts {
		if !strings.Contains(string(tests), "alertname: "+alert+"\n") {
			t.Errorf("testdata/alerts.yaml stages no fault for %s", alert)
		}
	}
	directory := t.TempDir()
	text, err := yaml.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{"rules.yaml": text, "tests.yaml": tests} {
		if err := os.WriteFile(filepath.Join(directory, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	output(t, promtool, "check", "rules", filepath.Join(directory, "rules.yaml"))
	output(t, promtool, "test", "rules", filepath.Join(directory, "tests.yaml"))
}

// TestEveryAlertHasARunbook compares the alerts with the headings of docs/alerts.md.
func TestEveryAlertHasARunbook(t *testing.T) {
	_, alerts := rules(t)
	text, err := os.ReadFile(root + "/docs/alerts.md")
	if err != nil {
		t.Fatal(err)
	}
	var headings []string
	for line := range strings.Lines(string(text)) {
		if heading, ok := strings.CutPrefix(line, "## Stack"); ok {
			headings = append(headings, "Stack"+strings.TrimSpace(heading))
		}
	}
	slices.Sort(alerts)
	slices.Sort(headings)
	if !slices.Equal(alerts, headings) {
		t.Errorf("docs/alerts.md has %v, the rules have %v", headings, alerts)
	}
}
