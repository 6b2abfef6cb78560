package journey

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
)

// Result is what result.json holds.
type Result struct {
	OK         bool            `json:"ok"`
	Tinkerbell string          `json:"tinkerbell,omitempty"` // version of the modern one
	Machines   []MachineResult `json:"machines"`
}

// MachineResult is how far a machine came.
type MachineResult struct {
	Name     string  `json:"name"`
	Firmware string  `json:"firmware"` // "bios", "uefi" or "go"
	OK       bool    `json:"ok"`
	Seconds  float64 `json:"seconds"`            // from power-on to the last step that was passed, or to the failure
	Workflow string  `json:"workflow,omitempty"` // its state, as the modern Tinkerbell's API has it
	Steps    []Step  `json:"steps"`
}

// Step is a step of a machine. A step that was not reached is not ok and says so.
type Step struct {
	Name    string  `json:"name"`
	OK      bool    `json:"ok"`
	Seconds float64 `json:"seconds"` // since power-on
	Detail  string  `json:"detail"`
}

// notReached is the detail of the steps after a failure.
const notReached = "not reached"

// Failure is the step that failed and why; empty where none did.
func (m MachineResult) Failure() (step, reason string) {
	for _, s := range m.Steps {
		if !s.OK && s.Detail != notReached {
			return s.Name, s.Detail
		}
	}
	return "", ""
}

// Failure is one line that names every machine that failed, with its step and the reason; empty where none did.
func (r Result) Failure() string {
	var faults []string
	for _, m := range r.Machines {
		if step, reason := m.Failure(); step != "" {
			faults = append(faults, fmt.Sprintf("%s: %s: %s", m.Name, step, reason))
		}
	}
	return strings.Join(faults, "; ")
}

// Table writes a row per step with the time of each machine.
func (r Result) Table(w io.Writer) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprint(table, "step")
	for _, m := range r.Machines {
		fmt.Fprintf(table, "\t%s", m.Name)
	}
	fmt.Fprintln(table)
	for i := range r.rows() {
		fmt.Fprint(table, r.row(i))
		for _, m := range r.Machines {
			if i >= len(m.Steps) {
				fmt.Fprint(table, "\t")
				continue
			}
			switch s := m.Steps[i]; {
			case s.OK:
				fmt.Fprintf(table, "\t%.1f s", s.Seconds)
			case s.Detail == notReached:
				fmt.Fprint(table, "\t-")
			default:
				fmt.Fprintf(table, "\tFAILED %.1f s", s.Seconds)
			}
		}
		fmt.Fprintln(table)
	}
	return table.Flush()
}

// rows is how many steps the longest way has.
func (r Result) rows() (n int) {
	for _, m := range r.Machines {
		n = max(n, len(m.Steps))
	}
	return n
}

// row is the name of a step: several where machines do not boot alike.
func (r Result) row(i int) string {
	var names []string
	for _, m := range r.Machines {
		if i < len(m.Steps) && !slices.Contains(names, m.Steps[i].Name) {
			names = append(names, m.Steps[i].Name)
		}
	}
	return strings.Join(names, ", ")
}

// firstLine leaves out what of an error quotes a log.
func firstLine(err error) string {
	line, _, _ := strings.Cut(err.Error(), "\n")
	return strings.TrimSuffix(line, " ends with:")
}

// oneLine makes a text fit a line.
func oneLine(text string) string {
	const most = 600
	text = strings.Join(strings.Fields(text), " ")
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + " ..."
	}
	return text
}
