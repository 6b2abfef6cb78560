package charttest

import (
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"
)

// Each value that is none any more is taken, whatever it is, left out, and named with what to do.
func TestRemovedValuesAreNamedAndLeftOut(t *testing.T) {
	text, err := os.ReadFile(chart + "/files/defaults.json")
	if err != nil {
		t.Fatal(err)
	}
	var file struct{ Removed map[string]string }
	if err := json.Unmarshal(text, &file); err != nil || len(file.Removed) == 0 {
		t.Fatalf("%d values: %v", len(file.Removed), err)
	}
	const base = "preset: classic\nroutes: {hegel: {limits: {connections: 5, requests: {concurrent: 5}}, " +
		"jwt: {issuer: a, audience: [b]}, health: {active: {type: http}}}}"
	before := rendersFrom(t, base)
	for path, remedy := range file.Removed {
		at := strings.ReplaceAll(path, "*", "hegel")
		for _, value := range []string{"40", "word", "[a, b]", "{a: 1}", "false"} {
			set := value
			keys := strings.Split(at, ".")
			for i := len(keys) - 1; i >= 0; i-- {
				set = "{" + keys[i] + ": " + set + "}"
			}
			values := from(t, base)
			out, err := inProcess(release{}, merged(values, from(t, set)))
			if err != nil {
				t.Errorf("%s: %v", at, err)
				continue
			}
			if !strings.Contains(out.notes(), at+": "+remedy) {
				t.Errorf("%s: %s is not named in the notes", at, value)
			}
			for name, was := range before {
				if got := out[name]; !strings.HasSuffix(name, "NOTES.txt") && normal(got) != normal(was) {
					t.Errorf("with %s: %s, %s is another", at, value, name)
				}
			}
		}
	}
}

// emptied is a group that had nothing but a value that was left out.
var emptied = regexp.MustCompile(`(?m)^ +[a-z]+: \{\}\n`)

func normal(document string) string { return emptied.ReplaceAllString(document, "") }
