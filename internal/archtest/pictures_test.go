package archtest

import (
	"os"
	"regexp"
	"testing"
)

var (
	step     = regexp.MustCompile("`((?:pkg|cmd)/[a-z0-9/_-]+\\.go)`((?:,? `\\w+`)*)")
	stepName = regexp.MustCompile("`(\\w+)`")
)

// The functions by which docs/design/architecture.md follows a packet are in the files that it names.
func TestPicturesNameFunctionsThatExist(t *testing.T) {
	text, err := os.ReadFile("../../docs/design/architecture.md")
	if err != nil {
		t.Fatal(err)
	}
	steps := step.FindAllStringSubmatch(string(text), -1)
	if len(steps) < 30 {
		t.Errorf("only %d steps were found", len(steps))
	}
	for _, match := range steps {
		source, err := os.ReadFile("../../" + match[1])
		if err != nil {
			t.Error(err)
			continue
		}
		for _, name := range stepName.FindAllStringSubmatch(match[2], -1) {
			if !regexp.MustCompile(`(?m)^func (\([^)]*\) )?` + name[1] + `[(\[]`).Match(source) {
				t.Errorf("%s has no function %s", match[1], name[1])
			}
		}
	}
}
