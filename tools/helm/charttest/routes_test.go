package charttest

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// valuesSchema compiles the chart's schema.
func valuesSchema(t *testing.T) *jsonschema.Schema {
	t.Helper()
	text, err := os.ReadFile(chart + "/values.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	var raw any
	if err := json.Unmarshal(text, &raw); err != nil {
		t.Fatal(err)
	}
	compiler := jsonschema.NewCompiler()
	if err := compiler.AddResource("values.json", raw); err != nil {
		t.Fatal(err)
	}
	schema, err := compiler.Compile("values.json")
	if err != nil {
		t.Fatal(err)
	}
	return schema
}

// TestTheSchemaAgreesWithTheCheck holds what the chart's schema says of a route to what "stack-proxy check" says.
func TestTheSchemaAgreesWithTheCheck(t *testing.T) {
	t.Parallel()
	schema := valuesSchema(t)
	proxy := filepath.Join(build(t), "stack-proxy")
	const pair = `{certificate: /a, key: /b}`
	for fragment, good := range map[string]bool{
		`accessLog: errors`:                                                  true,
		`accessLog: all`:                                                     true,
		`accessLog: 1/100`:                                                   false,
		`hosts: a.example`:                                                   true,
		`hosts: [a.example, "*"]`:                                            true,
		`timeouts: {idle: 1.5s}`:                                             true,
		`timeouts: {idle: -1s}`:                                              true,
		`timeouts: {idle: .5s}`:                                              true,
		`timeouts: {idel: 2s}`:                                               false,
		`timeouts: {idle: 2}`:                                                false,
		`timeouts: {idle: 2 s}`:                                              false,
		`timeouts: {idle: 5d}`:                                               false,
		`limits: {connections: 5, rate: 1.5G}`:                               true,
		`limits: {connections: -1}`:                                          false,
		`limits: {connections: 1.5}`:                                         false,
		`limits: {requests: {preset: files}}`:                                true,
		`limits: {requests: {preset: fils}}`:                                 false,
		`limits: {requests: {total: {perSecond: 0.5}}}`:                      true,
		`limits: {requests: {total: {perSecond: -1}}}`:                       false,
		`limits: {requests: {total: {perSecond: 1, burst: -1}}}`:             false,
		`limits: {requests: {perClient: {perSecond: 5, brst: 1}}}`:           false,
		`trustedPrefixes: 192.0.2.0/24`:                                      true,
		`trustedPrefixes: ["2001:db8::/64"]`:                                 true,
		`trustedPrefixes: [192.0.2.0/33]`:                                    false,
		`trustedPrefixes: [192.0.2.1]`:                                       false,
		`proxyProtocol: {accept: 192.0.2.0/24}`:                              true,
		`proxyProtocol: {accept: [192.0.2.256/32]}`:                          false,
		`optional: "yes"`:                                                    false,
		`rewrite: {stripPrefix: /a}`:                                         true,
		`rewrite: {strip: /a}`:                                               false,
		`backendTLS: {name: a.example, ca: /ca.pem}`:                         true,
		`backendTLS: {ca: /ca.pem}`:                                          false,
		`backendTLS: {name: a.example, ca: ca.pem}`:                          false,
		`tls: {certificates: ` + pair + `, minVersion: "1.3"}`:               true,
		`tls: {certificates: [` + pair + `]}`:                                true,
		`tls: {certificates: ` + pair + `, minVersion: 1.3}`:                 false,
		`tls: {certificates: ` + pair + `, minVersion: "1.1"}`:               false,
		`tls: {certificates: {certificate: /a}}`:                             false,
		`tls: {minVersion: "1.3"}`:                                           false,
		`jwt: {issuer: "https://a.example", audience: stack}`:                true,
		`jwt: {issuer: "https://a.example", audience: [a, ""]}`:              false,
		`jwt: {issuer: "https://a.example"}`:                                 false,
		`jwt: {issuer: "https://a.example", audience: a, algorithms: PS256}`: true,
		`jwt: {issuer: "https://a.example", audience: a, algorithms: none}`:  false,
		`jwt: {issuer: "https://a.example", audience: a, claims: {b: [c]}}`:  true,
		`paths: {deny: /metrics}`:                                            true,
		`paths: {allow: [/a, /b]}`:                                           true,
		`paths: {deny: [/]}`:                                                 false,
		`paths: {deny: metrics}`:                                             false,
		`paths: {denied: /metrics}`:                                          false,
		`backends: [a]`:                                                      false,
	} {
		t.Run(fragment, func(t *testing.T) {
			text := fragment + "\nprotocol: http\nlisten: [8080]\n"
			if !strings.HasPrefix(fragment, "backends") {
				text += "backends: [\"a:1\"]\n"
			}
			var values any
			in := strings.ReplaceAll(text, "\n", "\n    ")
			if err := yaml.Unmarshal([]byte("routes:\n  a:\n    "+in), &values); err != nil {
				t.Fatal(err)
			}
			if err := schema.Validate(values); (err == nil) != good {
				t.Errorf("the schema's verdict is %v", err)
			}
			file := filepath.Join(t.TempDir(), "routes.yaml")
			if err := os.WriteFile(file, []byte("routes:\n  - name: a\n    "+in), 0o600); err != nil {
				t.Fatal(err)
			}
			if out, err := exec.CommandContext(t.Context(), proxy, "check", "-f", file).CombinedOutput(); (err == nil) != good {
				t.Errorf("the check's verdict is %v\n%s", err, out)
			}
		})
	}
}

// TestFieldsByProtocolAgreeWithTheCheck holds the chart's table of which protocol a field is for to the proxy's.
func TestFieldsByProtocolAgreeWithTheCheck(t *testing.T) {
	t.Parallel()
	helm := tool(t, "helm")
	proxy := filepath.Join(build(t), "stack-proxy")
	fields := map[string]string{
		"files": `{"pace": "1M"}`, "tftp": `{"files": "boot"}`,
		"workers": `2`, "hosts": `["a.example"]`, "tls": `{"certificates": [{"certificate": "/a", "key": "/b"}]}`,
		"jwt": `{"issuer": "https://a.example", "audience": ["a"]}`, "rewrite": `{"stripPrefix": "/a"}`,
		"paths":      `{"deny": ["/a"]}`,
		"backendTLS": `{"name": "a.example"}`, "trustedPrefixes": `["192.0.2.0/24"]`, "accessLog": `"all"`,
		"proxyProtocol": `{"accept": ["192.0.2.0/24"]}`,
	}
	for _, protocol := range []string{"tcp", "http", "grpc", "tftp", "syslog", "udp", "files"} {
		t.Run(protocol, func(t *testing.T) {
			t.Parallel()
			for field, value := range fields {
				text := "protocol: " + protocol + "\n    listen: [1080]\n    " + field + ": " + value
				if protocol != "files" {
					text += "\n    backends: [\"a:1\"]"
				} else if field != "files" {
					text += "\n    files: {directory: /}"
				}
				write := func(name, text string) string {
					path := filepath.Join(t.TempDir(), name)
					if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
						t.Fatal(err)
					}
					return path
				}
				routes := write("routes.yaml", "routes:\n  - name: a\n    "+text+"\n")
				said, err := exec.CommandContext(t.Context(), proxy, "check", "-f", routes).CombinedOutput()
				values := write("values.yaml", "preset: none\nrelay: {enabled: false}\nroutes:\n  a:\n    "+text+"\n")
				out, failed := exec.CommandContext(t.Context(), helm, "template", "x", chart, "-f", values).CombinedOutput()
				refused := err != nil && strings.Contains(string(said), "does not apply")
				if (failed != nil) != refused {
					t.Errorf("%s: the chart says %v\n%s\nthe check %v\n%s", field, failed, out, err, said)
				}
			}
		})
	}
}

// TestEmptyListsOfPathsTakeThePresetsAway in a form that the proxy takes.
func TestEmptyListsOfPathsTakeThePresetsAway(t *testing.T) {
	for values, want := range map[string]string{
		"routes: {hegel: {paths: {deny: []}}}":                                   "none",
		"routes: {hegel: {paths: {allow: []}}}":                                  "deny",
		"preset: tinkerbell\nroutes: {http: {paths: {allow: []}}}":               "none",
		"preset: tinkerbell\nroutes: {http: {paths: {allow: [], deny: [/a]}}}":   "deny",
		"preset: tinkerbell\nroutes: {http: {paths: {deny: []}}}":                "allow",
		"preset: tinkerbell\nroutes: {http: {paths: {allow: [/a], deny: null}}}": "allow",
	} {
		var config corev1.ConfigMap
		rendersFrom(t, values).object(t, "ConfigMap", "-routes", &config)
		file := filepath.Join(t.TempDir(), "routes.yaml")
		if err := os.WriteFile(file, []byte(config.Data["routes.yaml"]), 0o600); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.CommandContext(t.Context(), filepath.Join(build(t), "stack-proxy"), "check", "-f", file).CombinedOutput(); err != nil {
			t.Errorf("%s: stack-proxy check says %v\n%s", values, err, out)
		}
		var table struct {
			Routes []struct {
				Name  string
				Paths *struct{ Allow, Deny []string }
			}
		}
		if err := yaml.Unmarshal([]byte(config.Data["routes.yaml"]), &table); err != nil {
			t.Fatal(err)
		}
		for _, r := range table.Routes {
			if r.Name != "hegel" && r.Name != "http" {
				continue
			}
			got := "none"
			if r.Paths != nil && len(r.Paths.Allow) > 0 {
				got = "allow"
			} else if r.Paths != nil && len(r.Paths.Deny) > 0 {
				got = "deny"
			}
			if got != want {
				t.Errorf("%s: %s of %+v, want %s", values, got, r.Paths, want)
			}
		}
	}
	refuses(t, "routes: {a: {protocol: tcp, port: 1, backends: ['service:x']}}", "routes.a.backends has service:x, which is no Service: write it as service:NAMESPACE/NAME:PORT")
}

// TestPresetsAgreeWithTheProxys compares the chart's presets with the tables of docs/stack-proxy.md, which are made from the
// proxy's own.
func TestPresetsAgreeWithTheProxys(t *testing.T) {
	text, err := os.ReadFile(root + "/docs/stack-proxy.md")
	if err != nil {
		t.Fatal(err)
	}
	row := regexp.MustCompile(`(?m)^\| (\d+)/(?:tcp|udp) \| (\S+) \| (\S+) \|`)
	for _, preset := range []string{"classic", "tinkerbell", "tinkerbell-0.22"} {
		_, table, _ := strings.Cut(string(text), "<!-- begin "+preset+" -->")
		table, _, _ = strings.Cut(table, "<!-- end "+preset+" -->")
		want := map[string]string{}
		for _, cells := range row.FindAllStringSubmatch(table, -1) {
			want[cells[2]] = cells[1] + " " + cells[3]
		}
		var file struct {
			Routes []struct {
				Name, Protocol string
				Listen         []int
			}
		}
		var routes corev1.ConfigMap
		rendersFrom(t, "preset: "+preset).object(t, "ConfigMap", "-routes", &routes)
		if err := yaml.Unmarshal([]byte(routes.Data["routes.yaml"]), &file); err != nil {
			t.Fatal(err)
		}
		got := map[string]string{}
		for _, r := range file.Routes {
			got[r.Name] = fmt.Sprint(r.Listen[0], " ", r.Protocol)
		}
		if len(want) == 0 || !maps.Equal(got, want) {
			t.Errorf("%s: the chart has %v, the proxy %v", preset, got, want)
		}
	}
}
