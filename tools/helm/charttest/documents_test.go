package charttest

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"
)

// block is a fenced block of a document.
type block struct{ place, language, text string }

var fenced = regexp.MustCompile("(?ms)^```(yaml|sh)\n(.*?)^```$")

// blocks are the commands and the YAML of the documents for users.
func blocks(t *testing.T) []block {
	t.Helper()
	var all []block
	for _, pattern := range []string{"*.md", "docs/*.md", "charts/stack/*.md"} {
		files, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, match := range fenced.FindAllStringSubmatchIndex(string(text), -1) {
				line := 1 + strings.Count(string(text[:match[0]]), "\n")
				all = append(all, block{
					fmt.Sprintf("%s:%d", filepath.Base(file), line), string(text[match[2]:match[3]]), string(text[match[4]:match[5]]),
				})
			}
		}
	}
	if len(all) < 40 {
		t.Fatalf("only %d blocks were found", len(all))
	}
	return all
}

// shell runs a block of a document as it stands, but for what is replaced in it, with the chart's tools and the programs.
func shell(t *testing.T, script string, replace ...string) ([]byte, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "bash", "-eo", "pipefail", "-c", strings.NewReplacer(replace...).Replace(script))
	cmd.Env = append(os.Environ(), "PATH="+filepath.Dir(tool(t, "helm"))+":"+build(t)+":"+os.Getenv("PATH"))
	return cmd.CombinedOutput()
}

// published is how documents name the chart.
const published = "oci://$REGISTRY/charts/stack"

// The runbook's command shows the proxy's own verdict on values before an upgrade, also where OS files are fetched.
func TestTheRunbookOfStackRoutesNotTakenChecksTheRoutes(t *testing.T) {
	t.Parallel()
	all := blocks(t)
	at := slices.IndexFunc(all, func(b block) bool { return strings.Contains(b.text, "stack-proxy check") })
	if at < 0 {
		t.Fatal("no document has the command")
	}
	for _, values := range slices.Concat(examples(t), []string{"-"}) {
		file, want := values, "tftp"
		if values == "-" {
			file, want = filepath.Join(t.TempDir(), "values.yaml"), "failed to parse routes file.*|nowhere"
			wrong := "preset: classic\npublicIP: 192.0.2.2\nroutes: {console: {protocol: tcp, port: 2222, backends: [a:1], timeouts: {idle: nowhere}}}\n"
			if err := os.WriteFile(file, []byte(wrong), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		out, err := shell(t, all[at].text, published, chart, "values.yaml", file, " -s ", " --skip-schema-validation -s ")
		if (err != nil) != (values == "-") || !regexp.MustCompile(want).Match(out) {
			t.Errorf("%s: %v\n%s", filepath.Base(values), err, out)
		}
	}
}

// What documents show as YAML is taken by what it is for, told by its keys.
func TestYAMLOfDocumentsIsTaken(t *testing.T) {
	t.Parallel()
	proxy := filepath.Join(build(t), "stack-proxy")
	for _, b := range blocks(t) {
		if b.language != "yaml" {
			continue
		}
		for _, document := range strings.Split(b.text, "\n---\n") {
			b.text = document
			taken(t, proxy, b)
		}
	}
}

func taken(t *testing.T, proxy string, b block) {
	t.Run(b.place, func(t *testing.T) {
		var keys map[string]any
		if err := yaml.UnmarshalStrict([]byte(b.text), &keys); err != nil {
			t.Fatal(err)
		}
		reads := func(into any) {
			t.Helper()
			if err := yaml.UnmarshalStrict([]byte(b.text), into); err != nil {
				t.Error(err)
			}
		}
		is := func(key string) bool { _, ok := keys[key]; return ok }
		_, routes := keys["routes"].([]any)
		switch {
		case routes:
			file := filepath.Join(t.TempDir(), "routes.yaml")
			if err := os.WriteFile(file, []byte(b.text), 0o600); err != nil {
				t.Fatal(err)
			}
			output(t, proxy, "check", "-f", file)
		case is("sets"):
			delete(keys, "volume") // the program's own
			fetch, err := yaml.Marshal(map[string]any{"files": map[string]any{"fetch": keys}})
			if err != nil {
				t.Fatal(err)
			}
			text := strings.ReplaceAll(string(fetch), "sha512:...", "sha512:"+strings.Repeat("0", 128))
			rendersFrom(t, "publicIP: 192.0.2.2\n"+text)
		case is("limits"):
			route, err := yaml.Marshal(map[string]any{"routes": map[string]any{"files": keys}})
			if err != nil {
				t.Fatal(err)
			}
			rendersFrom(t, "publicIP: 192.0.2.2\n"+string(route))
		case strings.Contains(b.text, "fluxcd.io/") || strings.Contains(b.text, "argoproj.io/"):
			given := keys["spec"].(map[string]any)["values"]
			if source, ok := keys["spec"].(map[string]any)["source"].(map[string]any); ok {
				given = source["helm"].(map[string]any)["valuesObject"]
			}
			values, err := yaml.Marshal(given)
			if err != nil {
				t.Fatal(err)
			}
			rendersFrom(t, "publicIP: 192.0.2.2\n"+strings.TrimPrefix(string(values), "null\n"))
		case is("rules"):
			reads(&rbacv1.Role{})
		case is("initContainers"):
			reads(&corev1.PodSpec{})
		case is("metadata"):
			reads(&corev1.Service{})
		default: // values of the chart
			if !is("publicIP") {
				b.text += "\npublicIP: 192.0.2.2\n"
			}
			rendersFrom(t, b.text)
		}
	})
}

// What documents show as commands is what a shell reads, what make has, and what Helm and the programs take.
func TestCommandsOfDocumentsExist(t *testing.T) {
	t.Parallel()
	programs := build(t)
	makefiles := string(output(t, "make", "-C", root, "--no-print-directory", "help"))
	help := map[string]string{}
	told := func(command ...string) string {
		key := strings.Join(command, " ")
		if help[key] == "" {
			out, _ := exec.CommandContext(t.Context(), command[0], append(command[1:], "--help")...).CombinedOutput()
			help[key] = string(out)
		}
		return help[key]
	}
	flag := regexp.MustCompile(`(?:^| )(--?[a-z][a-z-]*)`)
	for _, b := range blocks(t) {
		if b.language != "sh" {
			continue
		}
		if out, err := exec.CommandContext(t.Context(), "bash", "-nc", b.text).CombinedOutput(); err != nil {
			t.Errorf("%s: %s", b.place, out)
		}
		for _, line := range strings.Split(strings.ReplaceAll(b.text, "\\\n", " "), "\n") {
			line, _, _ = strings.Cut(line, " #")
			words := strings.Fields(line)
			switch {
			case len(words) < 2:
			case words[0] == "make":
				if !strings.Contains(makefiles, "make "+words[1]+" ") {
					t.Errorf("%s: make help does not have %s", b.place, words[1])
				}
			case words[0] == "helm":
				verb := words[1:2]
				if words[1] == "get" || words[1] == "show" {
					verb = words[1:3]
				}
				usage := told(append([]string{tool(t, "helm")}, verb...)...)
				for _, match := range flag.FindAllStringSubmatch(line, -1) {
					if !regexp.MustCompile(regexp.QuoteMeta(match[1]) + `[ ,=]`).MatchString(usage) {
						t.Errorf("%s: helm %s has no %s", b.place, words[1], match[1])
					}
				}
			default:
				own := regexp.MustCompile(`/(stack-proxy|stack-boots|stack-lb|dhcp-relay) ([a-z]+)([^>|]*)`).FindStringSubmatch(line)
				if own == nil {
					continue
				}
				usage := told(filepath.Join(programs, own[1]), own[2])
				for _, match := range flag.FindAllStringSubmatch(own[3], -1) {
					if !strings.Contains(usage, " "+match[1]+" ") && !strings.Contains(usage, " "+match[1]+"\t") {
						t.Errorf("%s: %s %s has no %s", b.place, own[1], own[2], match[1])
					}
				}
			}
		}
	}
	if len(help) < 5 {
		t.Errorf("only %q were found", slices.Sorted(maps.Keys(help)))
	}
}
