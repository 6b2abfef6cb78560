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
		"tinkerbell-0.22": preset(t, "tinkerbell-0.22"),
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
	table, err := route.Preset(name, route.Defaults{FilesDirectory: "`STACK_PROXY_FILES_DIRECTORY`"})
	if err != nil {
		t.Fatal(err)
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
