package hostlink

import (
	"os"
	"strings"
	"testing"
)

// TestDocs holds the manual to the code: every cause is there.
func TestDocs(t *testing.T) {
	const manual = "../../docs/broadcast-init.md"
	text, err := os.ReadFile(manual)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range causes {
		if !strings.Contains(string(text), "`"+name+"`") {
			t.Errorf("%s is not in %s", name, manual)
		}
	}
}
