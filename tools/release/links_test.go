package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// anchor is what GitHub makes of a heading.
func anchor(heading string) string {
	heading = strings.ToLower(strings.TrimSpace(heading))
	heading = regexp.MustCompile(`[^\p{L}\p{N} _-]`).ReplaceAllString(heading, "")
	return strings.ReplaceAll(heading, " ", "-")
}

// resolves tells what is wrong with a link to a file, or a directory, and a heading in it.
func resolves(file, heading string) error {
	if info, err := os.Stat(file); err != nil || info.IsDir() {
		return err
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	known := heading == ""
	for _, line := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(string(text), -1) {
		known = known || anchor(line[1]) == heading
	}
	if !known {
		return fmt.Errorf("no heading #%s", heading)
	}
	return nil
}

// What a document of this repository links to exists, with its heading.
func TestLinksResolve(t *testing.T) {
	var documents []string
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/design/*.md", "docs/reference/*.md", "charts/stack/*.md", "test/e2e/*.md", "test/e2e/kube/*.md"} {
		found, err := filepath.Glob(filepath.Join(root, pattern))
		must(t, err)
		documents = append(documents, found...)
	}
	links := 0
	for _, document := range documents {
		text, err := os.ReadFile(document)
		must(t, err)
		if regexp.MustCompile(`(?m)^(<<<<<<<|>>>>>>>) `).Match(text) {
			t.Errorf("%s has the marks of a merge", document)
		}
		for _, match := range regexp.MustCompile(`\]\(([^)\s]+)\)`).FindAllStringSubmatch(string(text), -1) {
			if strings.Contains(match[1], "://") {
				continue
			}
			links++
			path, heading, _ := strings.Cut(match[1], "#")
			file := document
			if path != "" {
				file = filepath.Join(filepath.Dir(document), path)
			}
			if err := resolves(file, heading); err != nil {
				t.Errorf("%s links to %s: %v", document, match[1], err)
			}
		}
	}
	if links < 50 {
		t.Errorf("only %d links were found", links)
	}
}
