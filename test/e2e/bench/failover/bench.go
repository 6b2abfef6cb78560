package failover

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/tinkerbell/stack/test/e2e/bench/report"
)

// Options are what a bench needs.
type Options struct {
	// Program is stack-lb.
	Program string
	Nodes   int
	// Repeats is how often each case happens, and Cases are their names; none is all.
	Repeats int
	Cases   []string
	// Short is the shortest lease in place of the default.
	Short bool
	Log   io.Writer
}

// ErrTwoOwners is the verdict of the sampler that two stations answered one ARP probe.
var ErrTwoOwners = errors.New("two stations answered one ARP probe")

// Run lets every case happen, and returns the rows. Rows whose candidate is stack-lb-short are with the shortest lease.
func Run(ctx context.Context, o Options) (rows []report.Row, err error) {
	cases := Cases()
	for _, name := range o.Cases {
		if !slices.ContainsFunc(cases, func(c Case) bool { return c.Name == name }) {
			return nil, fmt.Errorf("there is no case %q", name)
		}
	}
	dir, err := os.MkdirTemp("", "bench-failover")
	if err != nil {
		return nil, err
	}
	candidate, settings := "stack-lb", []string(nil)
	if o.Short {
		candidate = "stack-lb-short"
		settings = []string{"STACK_LB_LEASE_DURATION=3s", "STACK_LB_RENEW_DEADLINE=1s", "STACK_LB_RETRY_PERIOD=300ms"}
	}
	s, err := NewSite(ctx, dir, o.Program, o.Nodes, settings...)
	if err != nil {
		return nil, fmt.Errorf("%w (logs are in %s)", err, dir)
	}
	defer func() {
		err = errors.Join(err, s.Close())
		if err == nil {
			err = os.RemoveAll(dir)
		}
	}()
	if err := s.Open(ctx); err != nil {
		return nil, err
	}
	for _, c := range cases {
		if len(o.Cases) > 0 && !slices.Contains(o.Cases, c.Name) {
			continue
		}
		var seen []Seen
		for i := range o.Repeats {
			one, err := s.Try(ctx, c)
			if err != nil {
				return nil, fmt.Errorf("%s, repeat %d: %w", c.Name, i+1, err)
			}
			fmt.Fprintf(o.Log, "%s %d/%d: %+v\n", c.Name, i+1, o.Repeats, one)
			seen = append(seen, one)
			if one.TwoOwners > 0 {
				return nil, fmt.Errorf("%s, repeat %d: %w (%d of %d; logs are in %s)", c.Name, i+1, ErrTwoOwners,
					one.TwoOwners, one.Rounds, dir)
			}
		}
		rows = append(rows, rowsOf(c.Name, candidate, seen)...)
	}
	return rows, nil
}

func rowsOf(name, candidate string, seen []Seen) []report.Row {
	row := func(metric, unit string, value func(Seen) float64) report.Row {
		values := make([]float64, 0, len(seen))
		for _, s := range seen {
			values = append(values, value(s))
		}
		slices.Sort(values)
		return report.Row{
			Case: name, Candidate: candidate, Metric: metric, Unit: unit, Median: values[len(values)/2], Min: values[0],
			Max: values[len(values)-1], Runs: len(values),
		}
	}
	return []report.Row{
		row("echo-outage", "s", func(s Seen) float64 { return s.Echo }),
		row("http-outage", "s", func(s Seen) float64 { return s.HTTP }),
		row("http-failed", "requests", func(s Seen) float64 { return float64(s.Failed) }),
		row("two-owners", "probes", func(s Seen) float64 { return float64(s.TwoOwners) }),
		row("arp-probes", "probes", func(s Seen) float64 { return float64(s.Rounds) }),
	}
}
