package envdoc

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Check holds the generated parts of a document, by name, to what the code says, or with update writes them.
func Check(t testing.TB, path string, update bool, parts map[string]string) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	want := string(text)
	for name, part := range parts {
		if want, err = Replace(want, name, part); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
	}
	if update {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(want, string(text)); diff != "" {
		t.Errorf("%s is not what the code says (make generate writes it):\n%s", path, diff)
	}
}

// CheckSettings has a program take the settings that a document shows by value, in so many places, and those that the
// units in a directory have together.
func CheckSettings(t *testing.T, path, units, prefix string, places int, parse func() error) {
	t.Helper()
	var files []string
	if units != "" {
		var err error
		if files, err = filepath.Glob(units + "/*"); err != nil || len(files) == 0 {
			t.Fatalf("no units in %s: %v", units, err)
		}
	}
	document := ""
	for _, file := range append(files, path) {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if file == path && len(files) > 0 {
			document = "\n```\n" + document + "\n```\n" // as one block
			places++
		}
		document += string(text) + "\n"
	}
	shown := Settings(document, prefix)
	if len(shown) != places {
		t.Errorf("it is set in %d places of %s, want %d", len(shown), path, places)
	}
	for i, values := range shown {
		t.Run(strconv.Itoa(i), func(t *testing.T) {
			for name, value := range values {
				t.Setenv(name, value)
			}
			if err := parse(); err != nil {
				t.Error(err)
			}
		})
	}
}
