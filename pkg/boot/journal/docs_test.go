package journal

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Each cause has its row in docs/boots.md, in the order of the code.
func TestCausesAreDocumented(t *testing.T) {
	text, err := os.ReadFile("../../../docs/boots.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(text), "\n## Causes\n")
	if !found {
		t.Fatal("docs/boots.md has no section of causes")
	}
	section, _, _ = strings.Cut(section, "\n## ")
	var rows []string
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z-]+)` \\| .+ \\| .+ \\|$").FindAllStringSubmatch(section, -1) {
		rows = append(rows, m[1])
	}
	if diff := cmp.Diff(Causes(), rows); diff != "" {
		t.Errorf("docs/boots.md differs from the code: %s", diff)
	}
}
