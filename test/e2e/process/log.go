package process

import (
	"os"
	"regexp"
	"strings"
)

// control finds what moves a terminal's cursor or changes its colours.
var control = regexp.MustCompile(`\x1b\[[0-9;?=]*[A-Za-z]|[^\t\x20-\x7e]`)

// LastLine is a sign of progress: the last line that the program of that name has printed to a file. The dots that
// firmware prints while it waits are no part of it.
func LastLine(name, path string) func() string {
	return func() string {
		file, err := os.Open(path)
		if err != nil {
			return "" // nothing is printed yet
		}
		defer func() { _ = file.Close() }()
		return lastLine(name, end(file))
	}
}

func lastLine(name, text string) string {
	const most = 200
	lines := strings.FieldsFunc(text, func(r rune) bool { return r == '\n' || r == '\r' })
	for i := len(lines) - 1; i >= 0; i-- {
		if line := strings.TrimRight(control.ReplaceAllString(lines[i], ""), ". "); line != "" {
			return name + " printed last: " + line[max(0, len(line)-most):]
		}
	}
	return ""
}
