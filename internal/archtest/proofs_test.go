package archtest

import (
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	definedTest = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Benchmark)[A-Z]\w*)\(`)
	namedTest   = regexp.MustCompile(`\b(?:Test|Fuzz|Benchmark)[A-Z][A-Za-z0-9]+\b`)
)

// Each test that a document names as the proof of a claim exists.
func TestDocumentsNameTestsThatExist(t *testing.T) {
	defined, named := map[string]bool{}, map[string][]string{}
	err := filepath.WalkDir("../..", func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (entry.Name() == "build" || entry.Name() == ".git"):
			return filepath.SkipDir
		case strings.HasSuffix(path, "_test.go"):
			text, err := os.ReadFile(path)
			for _, match := range definedTest.FindAllSubmatch(text, -1) {
				defined[string(match[1])] = true
			}
			return err
		case strings.HasSuffix(path, ".md") && strings.HasPrefix(path, "../../docs"):
			text, err := os.ReadFile(path)
			for _, name := range namedTest.FindAllString(string(text), -1) {
				named[name] = append(named[name], path)
			}
			return err
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(named) < 50 {
		t.Errorf("the documents name %d tests only: are they read?", len(named))
	}
	for _, name := range slices.Sorted(maps.Keys(named)) {
		if !defined[name] {
			t.Errorf("%s: names %s, which is no test", strings.Join(named[name], ", "), name)
		}
	}
}
