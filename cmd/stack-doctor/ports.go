package main

import (
	"context"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/tinkerbell/stack/pkg/doctor"
	"github.com/tinkerbell/stack/pkg/doctor/port"
)

// result is a check's outcome.
type result struct {
	name, detail string
	err          error
	took         time.Duration
}

// ports makes all checks of ports at the same time; results are in the order of the checks.
func ports(ctx context.Context, checks []port.Check, stdout, stderr io.Writer) int {
	results := make([]result, len(checks))
	var all sync.WaitGroup
	for i, c := range checks {
		all.Go(func() {
			begun := time.Now()
			detail, err := c.Ask(ctx)
			results[i] = result{name: c.Name, detail: detail, err: err, took: time.Since(begun)}
		})
	}
	all.Wait()
	failed := 0
	for _, r := range results {
		verdict := "ok"
		if r.err != nil {
			verdict, r.detail = "FAILED", r.err.Error()
			failed++
		}
		fmt.Fprintf(stdout, "%-6s  %-12s  %s  (%s)\n",
			verdict, r.name, doctor.Clean(r.detail), r.took.Round(time.Millisecond))
	}
	if failed > 0 {
		fmt.Fprintf(stderr, "stack-doctor: %d of %d checks failed\n", failed, len(checks))
		return doctor.Broken
	}
	return doctor.Healthy
}
