package hostlink

import (
	"os"
	"strings"
	"testing"
)

// TestDocs holds the manual to the code: every cause has a row.
func TestDocs(t *testing.T) {
	const manual = "../../docs/broadcast-init.md"
	text, err := os.ReadFile(manual)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range causes {
		if !strings.Contains(string(text), "| `"+name+"` |") {
			t.Errorf("%s has no row in %s", name, manual)
		}
	}
}
