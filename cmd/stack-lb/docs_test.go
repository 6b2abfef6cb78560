package main

import (
	"flag"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tinkerbell/stack/internal/envdoc"
	"github.com/tinkerbell/stack/pkg/lb"
	"github.com/tinkerbell/stack/pkg/lb/reason"
)

var update = flag.Bool("update", false, "write the generated parts of the document anew")

const document = "../../docs/reference/stack-lb.md"

// The variables in the document are those of the program. "make generate" writes them.
func TestDocumentAgreesWithCode(t *testing.T) {
	envdoc.Check(t, document, *update, map[string]string{
		"variables": envdoc.Table(prefix, reflect.TypeFor[settings]()),
	})
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
