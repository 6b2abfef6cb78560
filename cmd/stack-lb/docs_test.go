package main

import (
	"flag"
	"fmt"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tinkerbell/stack/pkg/lb"
	"github.com/tinkerbell/stack/pkg/lb/reason"
)

var update = flag.Bool("update", false, "write the generated parts of the document anew")

const document = "../../docs/stack-lb.md"

// The variables in the document are those of the program. "go test ./cmd/stack-lb -update" writes them.
func TestDocumentAgreesWithCode(t *testing.T) {
	text, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	part := regexp.MustCompile(`(?s)(<!-- begin variables -->\n).*?(<!-- end variables -->)`)
	if !part.Match(text) {
		t.Fatal("the document has no table of variables")
	}
	want := part.ReplaceAllString(string(text), "${1}"+variables()+"${2}")
	if *update {
		if err := os.WriteFile(document, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(want, string(text)); diff != "" {
		t.Errorf("it is not what the code says (go test ./cmd/stack-lb -update writes it):\n%s", diff)
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
			if f.Tag.Get("required") != "" {
				value = "required"
			}
			fmt.Fprintf(&b, "| `%s_%s` | %s | %s |\n", prefix, strings.ToUpper(name), value, f.Tag.Get("desc"))
		}
	}
	walk(reflect.TypeFor[settings]())
	return b.String()
}

// Every reason and every metric has its row.
func TestDocumentNamesReasonsAndMetrics(t *testing.T) {
	text, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range reason.All() {
		if !strings.Contains(string(text), "| `"+r.String()+"` |") && !strings.Contains(string(text), "`"+r.String()+"`, ") {
			t.Errorf("reason %s has no row", r)
		}
	}
	registry := prometheus.NewRegistry()
	described := make(chan *prometheus.Desc, 64)
	lb.NewMetrics(registry)
	registry.Describe(described)
	close(described)
	names := regexp.MustCompile(`fqName: "([^"]+)"`)
	found := 0
	for d := range described {
		found++
		if name := names.FindStringSubmatch(d.String())[1]; !strings.Contains(string(text), "`"+name+"`") {
			t.Errorf("metric %s has no row", name)
		}
	}
	if found < 5 {
		t.Errorf("only %d metrics were found", found)
	}
}
