package archtest

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// notWords are a table's bars and rules, and drawings.
var notWords = regexp.MustCompile(`[|─│┌└├┐┘►◄▼┬┴┼]|:?-{3,}:?`)

// What users read about a program is one page, and a page of design has decisions only. Tables of settings, metrics and
// log lines are in docs/reference.
func TestPagesAreShort(t *testing.T) {
	longer := map[string]int{
		"docs/benchmarks.md":          1200, // a table
		"docs/design/architecture.md": 1500, // the table of packages
		"docs/design/decisions.md":    5000,
	}
	patterns := map[string]int{
		"docs/*.md": 2600, "docs/design/*.md": 250, "docs/start-*.md": 1500, "docs/former-chart.md": 1500, // first pages
	}
	for pattern, most := range patterns {
		paths, err := filepath.Glob("../../" + pattern)
		if err != nil || len(paths) == 0 {
			t.Fatalf("no %s: %v", pattern, err)
		}
		for _, path := range paths {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			name := strings.TrimPrefix(path, "../../")
			bound := max(most, longer[name])
			if words := len(strings.Fields(notWords.ReplaceAllString(string(text), " "))); words > bound {
				t.Errorf("%s has %d words, more than %d", name, words, bound)
			}
			if name != "docs/design/decisions.md" {
				continue
			}
			for _, decision := range strings.Split(string(text), "\n## ")[1:] {
				if words := len(strings.Fields(notWords.ReplaceAllString(decision, " "))); words > 250 {
					title, _, _ := strings.Cut(decision, "\n")
					t.Errorf("the decision %q has %d words", title, words)
				}
			}
		}
	}
}
