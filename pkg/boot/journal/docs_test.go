package journal

import (
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the table of causes into docs/boots.md, and their names into the API's description")

// The table of causes in docs/boots.md, and the names in the API's description, are made of the table in the code.
func TestCausesAreDocumented(t *testing.T) {
	var rows, names strings.Builder
	for _, r := range Table() {
		rows.WriteString("| <a id=\"" + r.Name + "\"></a>`" + r.Name + "` | " + r.Seen + " |\n")
		names.WriteString("            - " + r.Name + "\n")
	}
	for _, c := range []struct{ file, after, before, want string }{
		{"../../../docs/boots.md", "| cause | what was seen |\n|---|---|\n", "\n", rows.String()},
		{"../page/openapi.yaml", "description: Stable, see docs/boots.md\n          enum:\n", "        text:", names.String()},
	} {
		text, err := os.ReadFile(c.file)
		if err != nil {
			t.Fatal(err)
		}
		head, tail, found := strings.Cut(string(text), c.after)
		end := strings.Index(tail, "\n"+c.before)
		if !found || end < 0 {
			t.Fatalf("%s has no place for the causes", c.file)
		}
		if *update {
			if err := os.WriteFile(c.file, []byte(head+c.after+c.want+tail[end+1:]), 0o644); err != nil {
				t.Fatal(err)
			}
		} else if diff := cmp.Diff(c.want, tail[:end+1]); diff != "" {
			t.Errorf("%s differs from the table in the code (go test -update): %s", c.file, diff)
		}
	}
}

// A setting that a remedy names is one that a program has.
func TestRemediesNameSettingsThatExist(t *testing.T) {
	pages, err := filepath.Glob("../../../docs/reference/*.md")
	if err != nil || len(pages) == 0 {
		t.Fatal(pages, err)
	}
	var reference strings.Builder
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		reference.Write(text)
	}
	all := map[string]string{}
	for _, r := range Table() {
		all[r.Name] = r.Remedy
	}
	for _, r := range table() {
		all[r.name] += " " + r.remedy
	}
	setting := regexp.MustCompile(`\b[A-Z][A-Z0-9]*_[A-Z0-9_]+\b|\bsetting [A-Z]{2,}\b`)
	found := 0
	for cause, remedy := range all {
		for _, name := range setting.FindAllString(remedy, -1) {
			found++
			if !strings.Contains(reference.String(), "| `"+name+"` |") {
				t.Errorf("the remedy of %s names %s, which docs/reference has not", cause, name)
			}
		}
	}
	if found == 0 {
		t.Error("no remedy names a setting")
	}
}
