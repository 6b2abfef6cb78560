// Package report is what every bench writes: rows of medians, in one JSON file for all that measure one program.
package report

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/tinkerbell/stack/test/e2e/program"
)

// Row is one metric of one candidate in one case, over several runs.
type Row struct {
	Case      string  `json:"case"`
	Candidate string  `json:"candidate"`
	Metric    string  `json:"metric"`
	Unit      string  `json:"unit"`
	Median    float64 `json:"median"`
	Min       float64 `json:"min"`
	Max       float64 `json:"max"`
	Runs      int     `json:"runs"`
}

// Print writes rows as lines of a table.
func Print(w io.Writer, rows []Row) {
	for _, r := range rows {
		fmt.Fprintf(w, "%-16s %-16s %-20s %12.3f %-8s (%.3f to %.3f, %d runs)\n",
			r.Case, r.Candidate, r.Metric, r.Median, r.Unit, r.Min, r.Max, r.Runs)
	}
}

// Write puts rows into a file, in place of the rows of the same cases that it may hold; other cases stay.
func Write(path string, rows []Row) error {
	var all []Row
	switch text, err := os.ReadFile(path); {
	case errors.Is(err, os.ErrNotExist):
	case err != nil:
		return fmt.Errorf("failed to read rows: %w", err)
	default:
		if err := json.Unmarshal(text, &all); err != nil {
			return fmt.Errorf("failed to read rows of %s: %w", path, err)
		}
	}
	all = slices.DeleteFunc(all, func(old Row) bool {
		return slices.ContainsFunc(rows, func(r Row) bool { return r.Case == old.Case })
	})
	return program.WriteJSON(path, append(all, rows...))
}
