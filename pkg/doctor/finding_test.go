package doctor

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Every finding that is bad has a remedy, and is explained by such as there are.
func TestTableIsWhole(t *testing.T) {
	var names []string
	for _, r := range table() {
		if slices.Contains(names, r.name) {
			t.Errorf("%s is there twice", r.name)
		}
		names = append(names, r.name)
	}
	for _, r := range table() {
		if r.severity != Info && r.remedy == "" {
			t.Errorf("%s has no remedy", r.name)
		}
		for _, by := range r.by {
			if !slices.Contains(names, by) || by == r.name {
				t.Errorf("%s is explained by %s, which is not there", r.name, by)
			}
		}
	}
	// What the programs find is in the table, and nothing else is.
	var used strings.Builder
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		used.Write(text)
	}
	for _, name := range names {
		if !strings.Contains(used.String(), `"`+name+`"`) {
			t.Errorf("nobody finds %s", name)
		}
	}
	for _, m := range regexp.MustCompile(`\bfind\("([a-z-]+)"`).FindAllStringSubmatch(used.String(), -1) {
		if !slices.Contains(names, m[1]) {
			t.Errorf("%s is not in the table", m[1])
		}
	}
}

// What follows from another finding is left out, and what stands by itself is not.
func TestUnexplained(t *testing.T) {
	hole, silent := found("mtu-hole", "hole"), found("waits-for-backend", "silent")
	for name, test := range map[string]struct{ all, want []Finding }{
		"explained":  {[]Finding{silent, hole}, []Finding{hole}},
		"by itself":  {[]Finding{silent}, []Finding{silent}},
		"and beside": {[]Finding{hole, found("clock-off", "off")}, []Finding{hole, found("clock-off", "off")}},
	} {
		if diff := cmp.Diff(test.want, unexplained(test.all)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	if highest([]Finding{silent}) != Error || highest(nil) != Info {
		t.Error("the worst severity is wrong")
	}
}

// What strangers send reaches no terminal as it is.
func TestClean(t *testing.T) {
	for text, want := range map[string]string{
		"ipxe.efi":                   "ipxe.efi",
		"\x1b]0;own\x07\x1b[2J":      "\ufffd]0;own\ufffd\ufffd[2J",
		"a\u202eb\u2028c\x9b\xffd\n": "a\ufffdb\ufffdc\ufffdd\ufffd",
		strings.Repeat("x", 600):     strings.Repeat("x", mostText-3) + "...",
	} {
		if got := Clean(text); got != want {
			t.Errorf("%q is shown as %q, want %q", text, got, want)
		}
	}
}
