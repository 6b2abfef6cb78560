// Package charttest holds the chart to the API, to Pod Security, to the programs and to its documents. helm-unittest
// holds it to its templates (charts/stack/tests).
package charttest

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"sigs.k8s.io/yaml"
)

// Where things are, from this directory.
const (
	root  = "../../.."
	chart = root + "/charts/stack"
)

// tool is a program that make chart built; without it the test is skipped.
func tool(t *testing.T, name string) string {
	t.Helper()
	directory := os.Getenv("TOOLS")
	if directory == "" {
		directory = root + "/build/tools"
	}
	path, err := filepath.Abs(filepath.Join(directory, name))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Skipf("needs %s, which make chart builds", path)
	}
	return path
}

// output runs a program and fails with what it said.
func output(t *testing.T, name string, args ...string) []byte {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s %s: %v\n%s%s", filepath.Base(name), strings.Join(args, " "), err, &stdout, &stderr)
	}
	return stdout.Bytes()
}

// render is helm template, with preset classic where the arguments name none.
func render(t *testing.T, args ...string) []byte {
	t.Helper()
	args = append([]string{"template", "stack", chart, "--namespace", "tinkerbell", "--values", "testdata/classic.yaml"}, args...)
	return output(t, tool(t, "helm"), args...)
}

// object is a rendered object.
type object map[string]any

func (o object) kind() string { return fmt.Sprint(o["kind"]) }

func (o object) name() string {
	metadata, _ := o["metadata"].(map[string]any)
	return fmt.Sprint(metadata["name"])
}

func objects(t *testing.T, rendered []byte) []object {
	t.Helper()
	var all []object
	for _, document := range bytes.Split(rendered, []byte("\n---")) {
		var o object
		if err := yaml.Unmarshal(document, &o); err != nil {
			t.Fatal(err)
		}
		if len(o) > 0 {
			all = append(all, o)
		}
	}
	return all
}

// examples are the values files of charts/stack/examples, and a file with nearly everything on.
func examples(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob(chart + "/examples/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no examples: %v", err)
	}
	files = slices.DeleteFunc(files, func(f string) bool {
		// The one is no values file, the other another chart's.
		return strings.HasSuffix(f, "argocd-application.yaml") || strings.HasSuffix(f, "tinkerbell-chart.yaml")
	})
	return append(files, "testdata/everything.yaml", chart+"/tests/testdata/former.yaml")
}

// binaries is where build puts the programs.
var binaries string

func TestMain(m *testing.M) {
	if name := filepath.Base(os.Args[0]); standIns()[name] != nil {
		os.Exit(standIn(name))
	}
	var err error
	if binaries, err = os.MkdirTemp("", "charttest"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	_ = os.RemoveAll(binaries)
	os.Exit(code)
}

var compile = sync.OnceValues(func() ([]byte, error) {
	cmd := exec.Command("go", "build", "-o", binaries, "./cmd/...")
	cmd.Dir = root
	return cmd.CombinedOutput()
})

// build compiles the programs, once for all tests.
func build(t *testing.T) string {
	t.Helper()
	if out, err := compile(); err != nil {
		t.Fatalf("failed to build programs: %v\n%s", err, out)
	}
	return binaries
}

func TestExamplesAreValid(t *testing.T) {
	kubeconform := tool(t, "kubeconform")
	schemas := t.TempDir()
	output(t, "go", "run", "../cmd/kubeschemas", schemas)
	judge := func(t *testing.T, rendered []byte) ([]byte, error) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), kubeconform, "-strict", "-schema-location",
			schemas+"/{{.ResourceKind}}{{.KindSuffix}}.json", "-")
		cmd.Stdin = bytes.NewReader(rendered)
		return cmd.CombinedOutput()
	}
	proxy := filepath.Join(build(t), "stack-proxy")
	for _, file := range examples(t) {
		t.Run(filepath.Base(file), func(t *testing.T) {
			rendered := render(t, "--values", file)
			if !bytes.Equal(rendered, render(t, "--values", file)) {
				t.Error("two renders differ")
			}
			if out, err := judge(t, rendered); err != nil {
				t.Errorf("kubeconform: %v\n%s", err, out)
			}
			for _, o := range objects(t, rendered) {
				data, ok := o["data"].(map[string]any)
				if text, has := data["routes.yaml"].(string); ok && has {
					routes := filepath.Join(t.TempDir(), "routes.yaml")
					if err := os.WriteFile(routes, []byte(text), 0o600); err != nil {
						t.Fatal(err)
					}
					output(t, proxy, "check", "-f", routes)
				}
			}
		})
	}
	t.Run("argocd-application.yaml", func(t *testing.T) {
		text, err := os.ReadFile(chart + "/examples/argocd-application.yaml")
		if err != nil {
			t.Fatal(err)
		}
		if out, err := judge(t, text); err != nil {
			t.Errorf("kubeconform: %v\n%s", err, out)
		}
	})
	t.Run("an unknown field is refused", func(t *testing.T) {
		rendered := bytes.Replace(render(t), []byte("revisionHistoryLimit"), []byte("revisionHistroyLimit"), 1)
		if out, err := judge(t, rendered); err == nil {
			t.Errorf("kubeconform accepted a misspelt field\n%s", out)
		}
	})
}

// TestAChangeOfWhatIsReloadedKeepsThePod renders the pod with one table of routes and set of OS files and with others.
func TestAChangeOfWhatIsReloadedKeepsThePod(t *testing.T) {
	const set = "files.fetch.sets[0].name=hook,files.fetch.sets[0].url=https://a.example/"
	deployment := func(values string) (pod, files string) {
		for _, o := range objects(t, render(t, "--set", values)) {
			text, err := yaml.Marshal(o)
			switch {
			case err != nil:
				t.Fatal(err)
			case o.kind() == "Deployment":
				pod = string(text)
				for _, c := range containers(t, o) {
					for _, m := range c.VolumeMounts {
						if m.SubPath != "" || m.SubPathExpr != "" {
							t.Errorf("%s mounts %s by a subPath, which the kubelet never renews", c.Name, m.MountPath)
						}
					}
				}
			case o.kind() == "ConfigMap":
				files += string(text)
			}
		}
		return pod, files
	}
	pod, files := deployment(set + "1")
	for _, values := range []string{set + "2", set + "1,files.fetch.checkEvery=1h", set + "1,routes.tink.port=42114"} {
		again, other := deployment(values)
		if pod != again {
			t.Errorf("%s replaces the pod:\n%s\nbefore:\n%s", values, again, pod)
		}
		if files == other {
			t.Errorf("%s is in no ConfigMap", values)
		}
	}
}

func TestEveryVariableIsKnown(t *testing.T) {
	programs := build(t)
	help := map[string]string{}
	for _, name := range []string{"broadcast-init", "dhcp-relay", "stack-proxy", "stack-boots", "stack-doctor", "stack-lb"} {
		help[name] = string(output(t, filepath.Join(programs, name), "--help"))
	}
	for _, file := range examples(t) {
		for _, o := range objects(t, render(t, "--values", file)) {
			for _, c := range containers(t, o) {
				for _, v := range c.Env {
					known := regexp.MustCompile(`(?m)^\s+` + v.Name + `\s`).MatchString(help[c.Name])
					if !known && v.Name != "GOMEMLIMIT" {
						t.Errorf("%s: %s sets %s, which %s --help does not list", filepath.Base(file), o.kind(), v.Name, c.Name)
					}
				}
			}
		}
	}
}

// metric finds metrics' names in PromQL.
var metric = regexp.MustCompile(`\b(stack_proxy|stack_boot|stack_lb|dhcp_relay6?|stack_build|process)_[a-z0-9_]+\b`)

func TestEveryMetricIsExported(t *testing.T) {
	var reference []byte // whose tables are made from the programs
	for _, program := range []string{"stack-proxy", "dhcp-relay", "stack-boots", "stack-lb"} {
		text, err := os.ReadFile(filepath.Join(root, "docs", "reference", program+".md"))
		if err != nil {
			t.Fatal(err)
		}
		reference = append(reference, text...)
	}
	for _, file := range []string{"files/alerts.yaml", "files/dashboard.json"} {
		text, err := os.ReadFile(filepath.Join(chart, file))
		if err != nil {
			t.Fatal(err)
		}
		names := metric.FindAllString(string(text), -1)
		if len(names) == 0 {
			t.Errorf("%s names no metric", file)
		}
		slices.Sort(names)
		for _, name := range slices.Compact(names) {
			base := strings.TrimSuffix(strings.TrimSuffix(name, "_bucket"), "_count")
			if !strings.HasPrefix(name, "process_") && !strings.HasPrefix(name, "stack_build_") && !bytes.Contains(reference, []byte("`"+base+"`")) {
				t.Errorf("%s names %s, which no program exports", file, name)
			}
		}
	}
}

func TestREADMEListsEveryExample(t *testing.T) {
	text, err := os.ReadFile(chart + "/README.md")
	if err != nil {
		t.Fatal(err)
	}
	var listed []string
	for _, match := range regexp.MustCompile(`\(examples/([a-z0-9-]+\.yaml)\)`).FindAllStringSubmatch(string(text), -1) {
		listed = append(listed, match[1])
	}
	entries, err := os.ReadDir(chart + "/examples")
	if err != nil {
		t.Fatal(err)
	}
	var have []string
	for _, entry := range entries {
		have = append(have, entry.Name())
	}
	slices.Sort(listed)
	if listed = slices.Compact(listed); !slices.Equal(listed, have) {
		t.Errorf("README lists %v, the directory has %v", listed, have)
	}
}
