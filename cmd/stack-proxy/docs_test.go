package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tinkerbell/stack/pkg/route"
)

var update = flag.Bool("update", false, "write the generated parts of the documents anew")

const (
	document = "../../docs/stack-proxy.md"
	schema   = "../../docs/routes.schema.json"
)

// The reference in the document and the schema are made from the code. "go test ./cmd/stack-proxy -update" writes them.
func TestDocumentsAgreeWithCode(t *testing.T) {
	text, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	want := string(text)
	for name, table := range map[string]string{
		"variables": variables(), "fields": fields(), "classic": preset(t, "classic"), "tinkerbell": preset(t, "tinkerbell"),
	} {
		part := regexp.MustCompile(`(?s)(<!-- begin ` + name + ` -->\n).*?(<!-- end ` + name + ` -->)`)
		if !part.MatchString(want) {
			t.Fatalf("%s has no part %s", document, name)
		}
		want = part.ReplaceAllString(want, "${1}"+strings.ReplaceAll(table, "$", "$$")+"${2}")
	}
	made, err := route.Schema()
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		for path, text := range map[string][]byte{document: []byte(want), schema: made} {
			if err := os.WriteFile(path, text, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		return
	}
	if diff := cmp.Diff(want, string(text)); diff != "" {
		t.Errorf("%s is not what the code says (go test ./cmd/stack-proxy -update writes it):\n%s", document, diff)
	}
	there, err := os.ReadFile(schema)
	if err != nil || !bytes.Equal(made, there) {
		t.Errorf("%s is not what the code says (go test ./cmd/stack-proxy -update writes it): %v", schema, err)
	}
}

func variables() string {
	var b strings.Builder
	b.WriteString("| variable | default | meaning |\n|---|---|---|\n")
	var walk func(reflect.Type)
	walk = func(t reflect.Type) {
		for i := range t.NumField() {
			f := t.Field(i)
			if f.Anonymous {
				walk(f.Type)
				continue
			}
			name := regexp.MustCompile(`([a-z])([A-Z])`).ReplaceAllString(f.Name, "${1}_$2")
			value := "-"
			if d := f.Tag.Get("default"); d != "" {
				value = "`" + d + "`"
			}
			fmt.Fprintf(&b, "| `%s_%s` | %s | %s |\n", prefix, strings.ToUpper(name), value, f.Tag.Get("desc"))
		}
	}
	walk(reflect.TypeFor[config]())
	return b.String()
}

func fields() string {
	var b strings.Builder
	b.WriteString("| field | kind | meaning |\n|---|---|---|\n")
	for _, f := range route.Fields() {
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", f[0], f[1], f[2])
	}
	return b.String()
}

func preset(t *testing.T, name string) string {
	table, ok := route.Preset(name, route.Defaults{FilesDirectory: "`STACK_PROXY_FILES_DIRECTORY`"})
	if !ok {
		t.Fatalf("there is no preset %s", name)
	}
	var b strings.Builder
	b.WriteString("| port | route | protocol | backend |\n|---|---|---|---|\n")
	for _, r := range table.Routes {
		backend := r.Files.Directory
		if len(r.Backends) > 0 {
			backend = r.Backends[0].String()
		}
		if r.Optional {
			backend += " (optional)"
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", strings.TrimPrefix(r.Address(r.Listen[0]), ":"), r.Name, r.Protocol, backend)
	}
	return b.String()
}

// A newcomer's file with five mistakes: all five are told, and nothing else.
func TestCheckTellsEveryMistake(t *testing.T) {
	path := t.TempDir() + "/routes.yaml"
	text := `routes:
- name: Hegel
  protocol: http
  listen: 50061
  backends: hegel
- name: tftp
  protocol: tftp
  listen: 69000
  backends: smee:69
  timeout: 5s
- {name: log, protocol: sylog, listen: 514, backends: "smee:514"}
`
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	var stdout, stderr bytes.Buffer
	if code := run([]string{"check", "-f", path}, &stdout, &stderr); code != 1 || stdout.Len() > 0 {
		t.Errorf("exit status %d, output %q", code, stdout.String())
	}
	lines := strings.Split(strings.TrimSpace(stderr.String()), "\n")
	want := []string{
		"stack-proxy: failed to parse routes file " + path + ":",
		`line 2: routes[0].name: "Hegel" is no name`, `line 5: routes[0].backends[0]: "hegel" is no backend`,
		`line 8: routes[1].listen[0]: "69000" is no port`, "line 10: routes[1].timeout: no such field (did you mean timeouts?)",
		`line 11: routes[2].protocol: "sylog" is none of`,
	}
	if len(lines) != len(want) {
		t.Fatalf("got %d lines:\n%s", len(lines), stderr.String())
	}
	for i := range want {
		if !strings.HasPrefix(lines[i], want[i]) {
			t.Errorf("line %d is %q, want %q", i, lines[i], want[i])
		}
	}
}

func TestCheckPrintsTable(t *testing.T) {
	t.Setenv("STACK_PROXY_SMEE", "smee.tink.svc.cluster.local.")
	var stdout, stderr bytes.Buffer
	if code := run([]string{"check"}, &stdout, &stderr); code != 0 {
		t.Fatalf("exit status %d: %s", code, stderr.String())
	}
	if !strings.Contains(stdout.String(), "smee.tink.svc.cluster.local.:69") {
		t.Errorf("got\n%s", stdout.String())
	}
}

func TestWrongSettingsAreAllTold(t *testing.T) {
	for name, value := range map[string]string{
		"PRESET": "clasic", "HEGEL": "http://hegel", "TRUSTED_PROXIES": "10.0.0.0/8", "DRAIN_GRACE": "-1s",
	} {
		t.Setenv("STACK_PROXY_"+name, value)
	}
	var stdout, stderr bytes.Buffer
	if code := run(nil, &stdout, &stderr); code != 1 {
		t.Errorf("exit status %d", code)
	}
	for _, want := range []string{"STACK_PROXY_PRESET", "STACK_PROXY_HEGEL", "STACK_PROXY_DRAIN_GRACE"} {
		if !strings.Contains(stderr.String(), want) {
			t.Errorf("the message does not name %s:\n%s", want, stderr.String())
		}
	}
}
