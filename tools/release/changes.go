package main

import (
	"fmt"
	"os"
	"regexp"
	"strings"
)

// change is an entry of a changelog, as Artifact Hub has it.
type change struct {
	kind        string // added, changed, deprecated, removed, fixed or security
	description string
}

var (
	entry = regexp.MustCompile(`(?m)^(?:### +(.+)|- ((?:.+)(?:\n  .+)*))$`)
	// linked is a link of Markdown, of which the text is kept.
	linked = regexp.MustCompile(`\[([^\]]+)\]\([^)]+\)`)
)

// changesOf are the entries of a version's section. What an upgrade asks for is a change.
func changesOf(changelog, version string) ([]change, error) {
	text, err := os.ReadFile(changelog)
	if err != nil {
		return nil, err
	}
	section, err := notes(string(text), version)
	if err != nil {
		return nil, fmt.Errorf("failed to read %s: %w", changelog, err)
	}
	kind := "changed"
	var list []change
	for _, match := range entry.FindAllStringSubmatch(section, -1) {
		switch heading := strings.ToLower(match[1]); heading {
		case "":
			description := strings.Join(strings.Fields(linked.ReplaceAllString(match[2], "$1")), " ")
			list = append(list, change{kind, strings.NewReplacer("**", "", "`", "").Replace(description)})
		case "added", "changed", "deprecated", "removed", "fixed", "security":
			kind = heading
		case "upgrade":
			kind = "changed"
		default:
			return nil, fmt.Errorf("%s: %q is no kind of change", changelog, match[1])
		}
	}
	return list, nil
}
