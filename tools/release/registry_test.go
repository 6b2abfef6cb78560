package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The registry of releases stands in one line, so that somebody else can publish. What Tinkerbell has published already, the
// former chart among it, has its name.
func TestRegistryIsNamedOnce(t *testing.T) {
	rules, err := os.ReadFile(filepath.Join(root, "make", "release.mk"))
	must(t, err)
	match := regexp.MustCompile(`(?m)^RELEASES +:= (\S+)$`).FindSubmatch(rules)
	if match == nil {
		t.Fatal("make/release.mk has no line RELEASES")
	}
	name := string(match[1])
	published := regexp.MustCompile(`FORMER=oci://\S+|classic = "\S+|` + regexp.QuoteMeta(name) +
		`/(charts/tinkerbell|captain/|charts\n +chart: tinkerbell)`)
	list, err := exec.Command("git", "-C", root, "ls-files", "-z").Output()
	must(t, err)
	for _, file := range strings.Split(strings.TrimRight(string(list), "\x00"), "\x00") {
		text, err := os.ReadFile(filepath.Join(root, file))
		if os.IsNotExist(err) {
			continue
		}
		must(t, err)
		count, want := strings.Count(published.ReplaceAllString(string(text), ""), name), 0
		if file == "make/release.mk" {
			want = 1
		}
		if count != want {
			t.Errorf("%s names %s %d times, want %d", file, name, count, want)
		}
	}
}
