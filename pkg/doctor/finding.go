package doctor

import (
	_ "embed" // the words of the table
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/tinkerbell/stack/pkg/boot"
	"github.com/tinkerbell/stack/pkg/boot/journal"
)

// Severity is how much a finding is in the way of a boot.
type Severity uint8

// The severities, in their order.
const (
	Info    Severity = iota // worth knowing
	Warning                 // a boot may fail by it: with some machines, or at times
	Blind                   // the doctor could not look
	Error                   // machines do not boot
)

var severities = []string{"info", "warning", "blind", "error"}

// String is the severity's name.
func (s Severity) String() string { return severities[s] }

// MarshalText implements [encoding.TextMarshaler].
func (s Severity) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// row is a row of the table of what can be found.
type row struct {
	name     string
	severity Severity
	remedy   string
	by       []string // the findings that explain this one, which is not worth telling beside them
}

// Finding is a row of the table that holds in one run, with its sentence.
type Finding struct {
	Name     string   `json:"name"` // of the row; stable
	Severity Severity `json:"severity"`
	Text     string   `json:"text"`
	Remedy   string   `json:"remedy,omitempty"`
}

//go:embed findings.tsv
var findings string

// ofBoots in place of a remedy: the one that the boots page gives for the cause of this name.
const ofBoots = "boots"

// table is the whole table, in the order of a boot. Remedies that the boots page gives too are read from its causes.
var table = sync.OnceValue(func() []row {
	causes := map[string]string{}
	for _, c := range journal.Table() {
		causes[c.Name] = c.Remedy
	}
	var rows []row
	for line := range strings.Lines(findings) {
		cells := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if len(cells) != 5 {
			panic(fmt.Sprintf("findings.tsv: %q has not five cells", line))
		}
		severity := slices.Index(severities, cells[1])
		if severity < 0 {
			panic(fmt.Sprintf("findings.tsv: %q is no severity", cells[1]))
		}
		// The third cell, the sign of a fault, is for readers of the table.
		r := row{name: cells[0], severity: Severity(severity), remedy: cells[3], by: strings.Fields(cells[4])}
		if r.remedy == ofBoots {
			r.remedy = causes[r.name]
		}
		rows = append(rows, r)
	}
	return rows
})

// found makes a finding of the table. The arguments are of its sentence, which may hold what strangers sent. A name
// that the table has not is a mistake of the program.
func found(name, format string, args ...any) Finding {
	for _, r := range table() {
		if r.name == name {
			return Finding{Name: name, Severity: r.severity, Text: Clean(fmt.Sprintf(format, args...)), Remedy: r.remedy}
		}
	}
	panic("no finding is named " + name)
}

// unexplained are the findings that no other one explains.
func unexplained(all []Finding) (left []Finding) {
	for _, f := range all {
		at := slices.IndexFunc(table(), func(r row) bool { return r.name == f.Name })
		if !slices.ContainsFunc(all, func(other Finding) bool { return slices.Contains(table()[at].by, other.Name) }) {
			left = append(left, f)
		}
	}
	return left
}

// highest is the worst severity; [Info] where there is no finding.
func highest(all []Finding) (worst Severity) {
	for _, f := range all {
		worst = max(worst, f.Severity)
	}
	return worst
}

// mostText is how many bytes of a text are shown.
const mostText = 500

// Clean makes a text fit for a terminal, and not too long for it.
func Clean(text string) string { return boot.Cut(boot.Clean([]byte(text)), mostText, "...") }
