package journal

import (
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestRulesFitTheirWords: each cause has rules and words, and each fact and value is named by a rule.
func TestRulesFitTheirWords(t *testing.T) {
	ruled, worded := map[string]bool{}, map[string]bool{}
	for _, r := range table() {
		ruled[r.name] = true
	}
	for _, r := range Table() {
		worded[r.Name] = true
	}
	if diff := cmp.Diff(worded, ruled); diff != "" {
		t.Errorf("causes with words and with rules differ (-words +rules):\n%s", diff)
	}
	named := map[string]bool{}
	word := regexp.MustCompile(`[a-z-]+`)
	for line := range strings.Lines(rules) {
		for _, w := range word.FindAllString(line, -1) {
			named[w] = true
		}
	}
	for _, words := range []map[string]bool{keys(tests), keys(testsOf), keys(values), keys(valuesOf)} {
		for w := range words {
			if !named[w] {
				t.Errorf("no rule names %s", w)
			}
		}
	}
}

func keys[V any](of map[string]V) map[string]bool {
	all := map[string]bool{}
	for k := range of {
		all[k] = true
	}
	return all
}
