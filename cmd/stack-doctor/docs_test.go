package main

import (
	"flag"
	"reflect"
	"testing"

	"github.com/tinkerbell/stack/internal/envdoc"
)

var update = flag.Bool("update", false, "write the generated parts of the document anew")

// The variables in the document are those of the program. "make generate" writes them.
func TestDocumentAgreesWithCode(t *testing.T) {
	envdoc.Check(t, "../../docs/reference/stack-doctor.md", *update, map[string]string{
		"variables": envdoc.Table(prefix, reflect.TypeFor[settings]()),
	})
}
