// Package finding is the table of what stack-doctor can find: name, severity, words. Remedies that the boots page gives
// too are read from its table of causes.
package finding

import (
	_ "embed" // the words of the table
	"fmt"
	"slices"
	"strings"
	"sync"
	"unicode"

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

// Row is a row of the table.
type Row struct {
	Name     string
	Severity Severity
	Remedy   string
	// By are the findings that explain this one, which is not worth telling beside them.
	By []string
}

// Finding is what was found in one run.
type Finding struct {
	Name     string   `json:"name"` // of the row; stable
	Severity Severity `json:"severity"`
	Text     string   `json:"text"`
	Remedy   string   `json:"remedy,omitempty"`
}

//go:embed findings.tsv
var words string

// ofBoots in place of a remedy: the one that the boots page gives for the cause of this name.
const ofBoots = "boots"

// Table is the whole table, in the order of a boot.
var Table = sync.OnceValue(func() []Row {
	causes := map[string]string{}
	for _, c := range journal.Table() {
		causes[c.Name] = c.Remedy
	}
	var rows []Row
	for line := range strings.Lines(words) {
		cells := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if len(cells) != 5 {
			panic(fmt.Sprintf("findings.tsv: %q has not five cells", line))
		}
		severity := slices.Index(severities, cells[1])
		if severity < 0 {
			panic(fmt.Sprintf("findings.tsv: %q is no severity", cells[1]))
		}
		// The third cell is for readers of the table: what was seen.
		row := Row{Name: cells[0], Severity: Severity(severity), Remedy: cells[3], By: strings.Fields(cells[4])}
		if row.Remedy == ofBoots {
			row.Remedy = causes[row.Name]
		}
		rows = append(rows, row)
	}
	return rows
})

// New makes a finding of the table. The arguments are of its sentence, which may hold what strangers sent. A name that
// the table has not is a mistake of the program.
func New(name, format string, args ...any) Finding {
	for _, row := range Table() {
		if row.Name == name {
			return Finding{Name: name, Severity: row.Severity, Text: Clean(fmt.Sprintf(format, args...)), Remedy: row.Remedy}
		}
	}
	panic("no finding is named " + name)
}

// Unexplained are the findings that no other one explains.
func Unexplained(all []Finding) (left []Finding) {
	for _, f := range all {
		at := slices.IndexFunc(Table(), func(r Row) bool { return r.Name == f.Name })
		if !slices.ContainsFunc(all, func(other Finding) bool { return slices.Contains(Table()[at].By, other.Name) }) {
			left = append(left, f)
		}
	}
	return left
}

// Worst is the highest severity; [Info] where there is no finding.
func Worst(all []Finding) (worst Severity) {
	for _, f := range all {
		worst = max(worst, f.Severity)
	}
	return worst
}

// longest is how many characters of a text are shown.
const longest = 500

// Clean makes a text fit for a terminal: what came from the network has neither control characters nor those that turn
// the direction of writing, and an end.
func Clean(text string) string {
	var b strings.Builder
	n := 0
	for _, r := range text {
		if n++; n > longest {
			b.WriteString("...")
			break
		}
		switch {
		case r == unicode.ReplacementChar, !unicode.IsPrint(r):
			b.WriteByte('?')
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}
