package storm

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/tinkerbell/stack/test/e2e/storm/machines"
)

// Board is a storm as a table that fills: a row for each step.
type Board struct {
	machines int
	passed   map[string][]float64 // by step: when, in seconds, in the order in which it was told
	failed   int
	wrong    int
}

// NewBoard makes an empty table.
func NewBoard(machines int) *Board {
	return &Board{machines: machines, passed: map[string][]float64{}}
}

// Add takes what the machines say.
func (b *Board) Add(l machines.Line) {
	switch {
	case l.Passed != nil:
		b.passed[l.Passed.Step] = append(b.passed[l.Passed.Step], l.Passed.Seconds)
	case l.Outcome != nil:
		if !l.Outcome.Finished {
			b.failed++
		}
		b.wrong += len(l.Outcome.Wrong)
	}
}

// barWidth is that of a full bar.
const barWidth = 40

// Render writes the table and returns its lines.
func (b *Board) Render(w io.Writer) (lines int) {
	var text strings.Builder
	fmt.Fprintf(&text, "%-10s %-*s %9s %8s %8s %8s\n",
		"step", barWidth, "machines that have it behind them", "", "first", "median", "last")
	for _, step := range machines.Steps() {
		times := slices.Sorted(slices.Values(b.passed[step]))
		full := barWidth * len(times) / max(b.machines, 1)
		bar := strings.Repeat("█", full) + strings.Repeat("·", barWidth-full)
		fmt.Fprintf(&text, "%-10s %s %4d/%-4d", step, bar, len(times), b.machines)
		if n := len(times); n > 0 {
			fmt.Fprintf(&text, " %6.1f s %6.1f s %6.1f s", times[0], times[n/2], times[n-1])
		}
		text.WriteByte('\n')
	}
	fmt.Fprintf(&text, "%d failed, %d wrong answers\n", b.failed, b.wrong)
	_, _ = io.WriteString(w, text.String()) // a terminal that is gone shows nothing
	return strings.Count(text.String(), "\n")
}
