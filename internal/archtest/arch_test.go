// Package archtest holds the tree to docs/design/architecture.md, and what it logs to docs/*.md.
package archtest

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"os"
	"os/exec"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const module = "github.com/tinkerbell/stack/"

// listed is what "go list -json" says of a package.
type listed struct {
	ImportPath string
	Imports    []string
	Deps       []string
}

func list(t *testing.T) map[string]listed {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-json=ImportPath,Imports,Deps", "./...")
	cmd.Dir = "../.."
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("failed to list packages: %v", err)
	}
	packages := make(map[string]listed)
	for decoder := json.NewDecoder(bytes.NewReader(out)); ; {
		var p listed
		if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
			return packages
		} else if err != nil {
			t.Fatal(err)
		}
		packages[strings.TrimPrefix(p.ImportPath, module)] = p
	}
}

// row is a line of the document's table: `package` | job.
var row = regexp.MustCompile("(?m)^\\| `([a-z0-9/-]+)` \\| ")

// allowed is what each package may import. Names are short there: "daemon" is pkg/daemon, "proxy/*" all right below
// pkg/proxy.
func allowed(t *testing.T) map[string][]string {
	t.Helper()
	text, err := os.ReadFile("testdata/imports.txt")
	if err != nil {
		t.Fatal(err)
	}
	table := make(map[string][]string)
	for line := range strings.Lines(string(text)) {
		name, list, ok := strings.Cut(strings.TrimSpace(line), ":")
		if strings.HasPrefix(line, "#") || !ok {
			continue
		}
		table[name] = nil
		for each := range strings.SplitSeq(list, ",") {
			if each = strings.TrimSpace(each); !strings.HasPrefix(each, "internal/") {
				each = "pkg/" + each
			}
			table[name] = append(table[name], each)
		}
	}
	return table
}

func TestImportsFollowTheDocument(t *testing.T) {
	packages, table := list(t), allowed(t)
	text, err := os.ReadFile("../../docs/design/architecture.md")
	if err != nil {
		t.Fatal(err)
	}
	var described []string
	for _, match := range row.FindAllStringSubmatch(string(text), -1) {
		described = append(described, match[1])
	}
	for name, p := range packages {
		names, ok := table[name]
		if !ok {
			t.Errorf("%s has no line in testdata/imports.txt", name)
			continue
		}
		for _, imported := range p.Imports {
			imported, ours := strings.CutPrefix(imported, module)
			if ours && !slices.ContainsFunc(names, func(pattern string) bool {
				ok, _ := path.Match(pattern, imported)
				return ok
			}) {
				t.Errorf("%s imports %s, which its row does not allow", name, imported)
			}
		}
	}
	for name := range table {
		if _, ok := packages[name]; !ok {
			t.Errorf("testdata/imports.txt has %s, which does not exist", name)
		}
	}
	if diff := cmp.Diff(slices.Sorted(maps.Keys(table)), slices.Sorted(slices.Values(described))); diff != "" {
		t.Errorf("docs/design/architecture.md describes other packages:\n%s", diff)
	}
}

func TestProgramsLinkOnlyWhatTheyNeed(t *testing.T) {
	forbidden := map[string][]string{
		"cmd/broadcast-init": {"net/http", "k8s.io/client-go/rest", "github.com/prometheus/client_golang/prometheus"},
		"cmd/dhcp-relay":     {"k8s.io/client-go/rest", "net/http/httputil", "github.com/insomniacslk/dhcp/dhcpv4/server4"},
		"cmd/stack-proxy":    {"k8s.io/client-go/tools/record", module + "pkg/boot/journal"},
	}
	for program := range forbidden {
		forbidden[program] = append(forbidden[program], "github.com/miekg/dns")
	}
	packages := list(t)
	for program, paths := range forbidden {
		p, ok := packages[program]
		if !ok {
			t.Errorf("%s does not exist", program)
		}
		for _, forbidden := range paths {
			if slices.Contains(p.Deps, forbidden) {
				t.Errorf("%s links %s", program, forbidden)
			}
		}
	}
}

// The engine for plain requests does not count or log: its owner does.
func TestEngineNeitherCountsNorLogs(t *testing.T) {
	for _, imported := range list(t)["pkg/proxy/http1"].Imports {
		if slices.Contains([]string{"log/slog", "github.com/prometheus/client_golang/prometheus"}, imported) {
			t.Errorf("pkg/proxy/http1 imports %s", imported)
		}
	}
}

// Only main exits or reads the environment; linting holds the rest of the tree to it, this the size of main.
func TestMainIsShort(t *testing.T) {
	for _, program := range []string{"broadcast-init", "dhcp-relay", "stack-boots", "stack-doctor", "stack-lb", "stack-proxy"} {
		text, err := os.ReadFile("../../cmd/" + program + "/main.go")
		if err != nil {
			t.Error(err)
			continue
		}
		if lines := bytes.Count(text, []byte("\n")); lines > 140 {
			t.Errorf("cmd/%s/main.go has %d lines, more than 140", program, lines)
		}
	}
}
