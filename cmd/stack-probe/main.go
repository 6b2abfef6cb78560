// Command stack-probe asks a stack's ports once, as a machine that boots would, and says what answered.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/tinkerbell/stack/pkg/daemon"
)

// config is what the environment sets.
type config struct {
	daemon.Settings
	Timeout time.Duration `default:"30s" desc:"how long all checks may take"`

	Checks []string `required:"true" desc:"what to ask: name=http://host:port/path, https://host:port/path?host=name, tcp://host:port, grpc://host:port, tftp://host:port/file, dhcp://host:port?metrics=URL; separated by spaces or commas"`
}

// checks parses the list.
func (c *config) checks() ([]check, error) {
	var all []check
	var faults []error
	for _, text := range split(c.Checks) {
		one, err := parse(text)
		if err != nil {
			faults = append(faults, fmt.Errorf("STACK_PROBE_CHECKS: %w", err))
			continue
		}
		all = append(all, one)
	}
	return all, errors.Join(faults...)
}

// Validate implements the check of pkg/daemon.
func (c *config) Validate() error {
	_, err := c.checks()
	return err
}

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, stdout, stderr io.Writer) int {
	var c config
	program := daemon.Program{
		Name: "stack-probe", Prefix: "STACK_PROBE", Config: &c,
		Summary: "ask a stack's ports once and say what answered",
		Notes:   "It exits with 0 when every check was answered. \"helm test\" runs it.",
	}
	if code, done := program.Start(args, stdout, stderr); done {
		return code
	}
	checks, err := c.checks()
	if err != nil {
		return 1 // said by Validate
	}
	ctx, cancel := context.WithTimeout(context.Background(), c.Timeout)
	defer cancel()
	failed := 0
	for _, r := range ask(ctx, checks) {
		verdict := "ok"
		if r.err != nil {
			verdict, r.detail = "FAILED", r.err.Error()
			failed++
		}
		fmt.Fprintf(stdout, "%-6s  %-12s  %s  (%s)\n", verdict, r.name, r.detail, r.took.Round(time.Millisecond))
	}
	if failed > 0 {
		fmt.Fprintf(stderr, "stack-probe: %d of %d checks failed\n", failed, len(checks))
		return 1
	}
	return 0
}

// result is a check's outcome.
type result struct {
	name, detail string
	err          error
	took         time.Duration
}

// ask makes all checks at the same time; results are in the order of the checks.
func ask(ctx context.Context, checks []check) []result {
	results := make([]result, len(checks))
	var wg sync.WaitGroup
	for i, c := range checks {
		wg.Go(func() {
			begun := time.Now()
			detail, err := c.ask(ctx)
			results[i] = result{name: c.name, detail: detail, err: err, took: time.Since(begun)}
		})
	}
	wg.Wait()
	return results
}
