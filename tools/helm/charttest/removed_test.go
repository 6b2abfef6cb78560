package charttest

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
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
		"jwt: {issuer: a, audience: [b]}, tls: {certificates: [{certificate: /a, key: /b}]}}}"
	before := rendersFrom(t, base)
	for _, value := range []string{"40", "word", "[a, b]", "{a: 1}", "false"} {
		values := from(t, base)
		for path := range file.Removed {
			set, keys := value, strings.Split(strings.ReplaceAll(path, "*", "hegel"), ".")
			for _, key := range slices.Backward(keys) {
				set = "{" + key + ": " + set + "}"
			}
			values = merged(values, from(t, set))
		}
		out, err := inProcess(release{}, values)
		if err != nil {
			t.Errorf("%s: %v", value, err)
			continue
		}
		for path, remedy := range file.Removed {
			if at := strings.ReplaceAll(path, "*", "hegel"); !strings.Contains(out.notes(), at+": "+remedy) {
				t.Errorf("%s: %s is not named in the notes", at, value)
			}
		}
		for name, was := range before {
			if got := out[name]; !strings.HasSuffix(name, "NOTES.txt") && normal(got) != normal(was) {
				t.Errorf("with %s %s is another", value, name)
			}
		}
	}
}

// emptied is a group that had nothing but a value that was left out.
var emptied = regexp.MustCompile(`(?m)^ +[a-z]+: \{\}\n`)

func normal(document string) string { return emptied.ReplaceAllString(document, "") }
