package charttest

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// rules is the PrometheusRule's spec, as Prometheus takes it.
func rules(t *testing.T) (spec any, alerts []string) {
	t.Helper()
	for _, o := range objects(t, render(t, "--set", "monitoring.prometheusRule.enabled=true,publicIP=192.0.2.2,loadBalancer.enabled=true")) {
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

// TestAnotherPodsReplyIsNoRogues: several pods without a key drop each other's replies as unsolicited.
func TestAnotherPodsReplyIsNoRogues(t *testing.T) {
	for values, unsolicited := range map[string]bool{
		"{}":          true,
		"replicas: 2": false,
		"replicas: 2\nrelay: {tokenKey: {existingSecret: key}}":                        true,
		"replicas: 2\nrelay: {extraEnv: [{name: DHCP_RELAY_TOKEN_KEY, value: a-key}]}": true,
	} {
		text := rendersFrom(t, values+"\n")["stack/templates/monitors.yaml"]
		if text != "" && strings.TrimSpace(text) != "" {
			t.Fatalf("monitors are on by themselves:\n%s", text)
		}
		on := merged(from(t, values), from(t, "monitoring: {prometheusRule: {enabled: true}}"))
		out, err := inProcess(release{}, on)
		if err != nil {
			t.Fatal(err)
		}
		text = out["stack/templates/monitors.yaml"]
		if !strings.Contains(text, "reply-from-client|untrusted-server") || strings.Contains(text, "ROGUE") ||
			strings.Contains(text, "unsolicited|") != unsolicited {
			t.Errorf("%s: the rogue alert asks for unsolicited replies: %v", values, !unsolicited)
		}
	}
}

// TestDashboardsDifferByRelease: two releases' dashboards stand beside each other in Grafana.
func TestDashboardsDifferByRelease(t *testing.T) {
	seen := map[string]bool{}
	for _, name := range []string{"one", "two"} {
		out, err := inProcess(release{name: name}, from(t, "monitoring: {dashboard: {enabled: true}}"))
		if err != nil {
			t.Fatal(err)
		}
		var dashboards corev1.ConfigMap
		out.object(t, "ConfigMap", "-dashboard", &dashboards)
		for _, text := range dashboards.Data {
			var d struct{ UID, Title string }
			if err := json.Unmarshal([]byte(text), &d); err != nil {
				t.Fatal(err)
			}
			if d.UID == "" || len(d.UID) > 40 || seen[d.UID] || seen[d.Title] || !strings.Contains(d.Title, name) {
				t.Errorf("UID %q, title %q", d.UID, d.Title)
			}
			seen[d.UID], seen[d.Title] = true, true
		}
	}
	if len(seen) != 4 {
		t.Errorf("%v", seen)
	}
}
