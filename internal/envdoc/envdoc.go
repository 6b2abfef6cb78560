// Package envdoc writes the generated parts of a document, such as the table of a program's settings.
package envdoc

import (
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
)

var wordEnd = regexp.MustCompile(`([a-z0-9])([A-Z])`)

// Table is the Markdown table of the settings in a struct for envconfig, from its tags default, required and desc.
// Those of embedded structs stand in their place.
func Table(prefix string, settings reflect.Type) string {
	var b strings.Builder
	b.WriteString("| variable | default | meaning |\n|---|---|---|\n")
	for _, f := range reflect.VisibleFields(settings) {
		if f.Anonymous || !f.IsExported() {
			continue
		}
		value := "-"
		if d := f.Tag.Get("default"); d != "" {
			value = "`" + d + "`"
		}
		if f.Tag.Get("required") != "" {
			value = "required"
		}
		name := strings.ToUpper(wordEnd.ReplaceAllString(f.Name, "${1}_$2"))
		fmt.Fprintf(&b, "| `%s_%s` | %s | %s |\n", prefix, name, value, f.Tag.Get("desc"))
	}
	return b.String()
}

var described = regexp.MustCompile(`fqName: "([^"]+)", help: ("(?:[^"\\]|\\.)*"), .*variableLabels: \{([^}]*)\}`)

// Metrics is the Markdown table of a collector's metrics that begin with a prefix, with their labels and help.
func Metrics(c prometheus.Collector, prefix string) string {
	descriptions := make(chan *prometheus.Desc)
	go func() {
		c.Describe(descriptions)
		close(descriptions)
	}()
	var rows []string
	for d := range descriptions {
		match := described.FindStringSubmatch(d.String())
		if match == nil || !strings.HasPrefix(match[1], prefix) {
			continue
		}
		help, _ := strconv.Unquote(match[2])
		labels := strings.ReplaceAll(match[3], ",", ", ")
		rows = append(rows, fmt.Sprintf("| `%s` | %s | %s |\n", match[1], labels, help))
	}
	slices.Sort(rows)
	return "| metric | labels | meaning |\n|---|---|---|\n" + strings.Join(rows, "")
}

// Replace puts a text between a document's lines "<!-- begin name -->" and "<!-- end name -->". It fails without them.
func Replace(document, name, text string) (string, error) {
	begin, end := "<!-- begin "+name+" -->\n", "<!-- end "+name+" -->"
	before, rest, begun := strings.Cut(document, begin)
	_, after, ended := strings.Cut(rest, end)
	if !begun || !ended {
		return "", fmt.Errorf("failed to find part %s of the document", name)
	}
	return before + begin + text + end + after, nil
}

// Settings are the settings of a program that a document shows by value, as NAME=value: those of each fenced block
// together.
func Settings(document, prefix string) []map[string]string {
	assignment := regexp.MustCompile(`\b(` + prefix + `_[A-Z0-9_]+)=(\S+)`)
	var all []map[string]string
	for i, block := range strings.Split(document, "\n```") {
		found := assignment.FindAllStringSubmatch(block, -1)
		if i%2 == 0 || len(found) == 0 {
			continue
		}
		settings := map[string]string{}
		for _, setting := range found {
			settings[setting[1]] = setting[2]
		}
		all = append(all, settings)
	}
	return all
}
