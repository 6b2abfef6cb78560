package main

import (
	"bytes"
	_ "embed" // the templates
	"io"
	"text/tabwriter"
	"text/template"
	"time"

	"github.com/tinkerbell/stack/pkg/boot"
	"github.com/tinkerbell/stack/pkg/boot/page"
)

// cleanWriter lets nothing through that a terminal would obey, whatever the server has sent. Each write is of whole
// lines.
type cleanWriter struct{ io.Writer }

// Write implements io.Writer.
func (c cleanWriter) Write(p []byte) (int, error) {
	for line := range bytes.Lines(p) {
		if _, err := io.WriteString(c.Writer, boot.Clean(bytes.TrimSuffix(line, []byte("\n")))+"\n"); err != nil {
			return 0, err
		}
	}
	return len(p), nil
}

//go:embed show.txt
var templates string

// render fills one of the templates of show.txt, and puts its columns in line.
func render(name string, data any, now time.Time) string {
	var b bytes.Buffer
	columns := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	all := template.Must(template.New("").Funcs(template.FuncMap{
		"newest": page.Newest, "bytes": page.Bytes,
		"age":  func(t time.Time) string { return page.Age(now.Sub(t)) },
		"took": func(from, to time.Time) string { return page.Duration(to.Sub(from)) },
		"valid": func(address interface{ IsValid() bool }) any { // nil where there is none
			if !address.IsValid() {
				return nil
			}
			return address
		},
	}).Parse(templates))
	if err := all.ExecuteTemplate(columns, name, data); err != nil {
		return err.Error() // a template that tests do not know
	}
	_ = columns.Flush() // into memory
	return b.String()
}
