package boots

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"text/tabwriter"
)

// Result is what the pod said of one fault.
type Result struct {
	Fault    string `json:"fault"`
	Machine  string `json:"machine"`  // "bios", "uefi" (QEMU) or "go"
	Expected string `json:"expected"` // name of the cause
	// Said is the name of the cause, or what was said of the machine instead.
	Said    string  `json:"said"`
	OK      bool    `json:"ok"`
	Seconds float64 `json:"seconds"` // from power-on until page, API and command had said it
	// Text is the sentence that a person reads, and Trouble why it is not ok.
	Text    string `json:"text,omitempty"`
	Trouble string `json:"trouble,omitempty"`
}

// Write writes result.json.
func Write(path string, results []Result) error {
	text, err := json.MarshalIndent(results, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("failed to write result: %w", err)
	}
	if err := os.WriteFile(path, append(text, '\n'), 0o644); err != nil {
		return fmt.Errorf("failed to write result: %w", err)
	}
	return nil
}

// Table writes a row for each fault.
func Table(w io.Writer, results []Result) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "fault\tmachine\texpected\tsaid\tok\tseconds")
	for _, r := range results {
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%v\t%.1f\n", r.Fault, r.Machine, r.Expected, r.Said, r.OK, r.Seconds)
	}
	return table.Flush()
}
