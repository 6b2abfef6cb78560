package rounds

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tinkerbell/stack/test/e2e/bench/report"
)

func TestRun(t *testing.T) {
	var order []string
	calls := 0.0
	c := Case{
		Name: "bulk", Units: map[string]string{"cost": "s"}, Candidates: []string{"a", "b", "c"},
		Measure: func(_ context.Context, name string) (Sample, error) {
			order = append(order, name)
			if name == "c" {
				return nil, fmt.Errorf("c is not installed: %w", ErrLeftOut)
			}
			calls++
			return Sample{"cost": calls, "unnamed": 1}, nil
		},
		Settle: func(round map[string]Sample) { round["b"]["cost"] -= round["a"]["cost"] },
	}
	rows, err := Run(t.Context(), []Case{c, {Name: "other"}}, Options{Runs: 3, Cases: []string{"bulk"}, Log: io.Discard})
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(order, ""); got != "abcbcacab" {
		t.Errorf("the order was %s: every candidate must have every place", got)
	}
	want := []report.Row{
		{Case: "bulk", Candidate: "a", Metric: "cost", Unit: "s", Median: 4, Min: 1, Max: 5, Runs: 3},
		{Case: "bulk", Candidate: "b", Metric: "cost", Unit: "s", Median: 1, Min: -1, Max: 1, Runs: 3},
	}
	if diff := cmp.Diff(want, rows); diff != "" {
		t.Errorf("rows differ (-want +got):\n%s", diff)
	}
	if _, err := Run(t.Context(), []Case{c}, Options{Cases: []string{"blk"}}); err == nil {
		t.Error("an unknown case was accepted")
	}
	failure := errors.New("broken")
	c.Measure = func(context.Context, string) (Sample, error) { return nil, failure }
	if _, err := Run(t.Context(), []Case{c}, Options{Runs: 1, Log: io.Discard}); !errors.Is(err, failure) {
		t.Errorf("got %v", err)
	}
}

func TestMedian(t *testing.T) {
	if got := Median([]float64{1, 2, 9}); got != 2 {
		t.Errorf("got %v", got)
	}
	if got := Median([]float64{1, 2, 4, 9}); got != 3 {
		t.Errorf("got %v", got)
	}
}
