// Package rounds is the loop that the benches share: every case is measured several times, the candidates interleaved,
// so that what else the machine does falls on all of them; medians are reported.
package rounds

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/tinkerbell/stack/test/e2e/bench/report"
)

// ErrLeftOut is a candidate that cannot take part, such as one that is not installed.
var ErrLeftOut = errors.New("left out")

// Sample is what one measurement of a candidate says, by metric.
type Sample map[string]float64

// Case is one kind of traffic.
type Case struct {
	Name       string
	Units      map[string]string // by metric; what has no unit is logged only
	Candidates []string
	Measure    func(ctx context.Context, candidate string) (Sample, error)
	// Settle is for samples that depend on those of other candidates in the same round; it may be nil.
	Settle func(round map[string]Sample)
}

// Options of a run.
type Options struct {
	Runs  int      // rounds, each of which measures every candidate once
	Cases []string // empty is all
	Log   io.Writer
}

// Run measures and returns the rows.
func Run(ctx context.Context, cases []Case, o Options) ([]report.Row, error) {
	for _, name := range o.Cases {
		if !slices.ContainsFunc(cases, func(c Case) bool { return c.Name == name }) {
			return nil, fmt.Errorf("failed to find case %q: there are %s", name, strings.Join(Names(cases), ", "))
		}
	}
	var rows []report.Row
	for _, c := range cases {
		if len(o.Cases) > 0 && !slices.Contains(o.Cases, c.Name) {
			continue
		}
		got, err := run(ctx, c, o)
		if err != nil {
			return nil, err
		}
		rows = append(rows, got...)
	}
	return rows, nil
}

// Names lists cases.
func Names(cases []Case) []string {
	names := make([]string, len(cases))
	for i, c := range cases {
		names[i] = c.Name
	}
	return names
}

func run(ctx context.Context, c Case, o Options) ([]report.Row, error) {
	collected := map[string][]Sample{}
	for round := range o.Runs {
		samples := map[string]Sample{}
		for i := range c.Candidates {
			name := c.Candidates[(i+round)%len(c.Candidates)] // each has each place once
			s, err := c.Measure(ctx, name)
			if errors.Is(err, ErrLeftOut) {
				fmt.Fprintf(o.Log, "%s: %v\n", c.Name, err)
				continue
			}
			if err != nil {
				return nil, fmt.Errorf("failed to measure %s of %s: %w", c.Name, name, err)
			}
			samples[name] = s
		}
		if c.Settle != nil {
			c.Settle(samples)
		}
		for _, name := range c.Candidates {
			if s, ok := samples[name]; ok {
				collected[name] = append(collected[name], s)
				fmt.Fprintf(o.Log, "%s round %d %s %v\n", c.Name, round+1, name, s)
			}
		}
	}
	return summarize(c, collected), nil
}

// summarize makes rows, metric by metric, with the candidates in their order.
func summarize(c Case, collected map[string][]Sample) []report.Row {
	var rows []report.Row
	for _, metric := range slices.Sorted(maps.Keys(c.Units)) {
		for _, name := range c.Candidates {
			var values []float64
			for _, s := range collected[name] {
				if v, ok := s[metric]; ok {
					values = append(values, v)
				}
			}
			if len(values) == 0 {
				continue
			}
			slices.Sort(values)
			rows = append(rows, report.Row{
				Case: c.Name, Candidate: name, Metric: metric, Unit: c.Units[metric], Runs: len(values),
				Median: Median(values), Min: values[0], Max: values[len(values)-1],
			})
		}
	}
	return rows
}

// Median of sorted values.
func Median(sorted []float64) float64 {
	middle := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[middle]
	}
	return (sorted[middle-1] + sorted[middle]) / 2
}
