// Command boots stages the faults of a network boot with real firmware, and asks the pod what is the matter. See "make
// boots".
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/tinkerbell/stack/test/e2e/boots"
	"github.com/tinkerbell/stack/test/e2e/kernel"
	"github.com/tinkerbell/stack/test/e2e/lab"
	"github.com/tinkerbell/stack/test/e2e/machine"
	"github.com/tinkerbell/stack/test/e2e/program"
)

func main() {
	lab.Init()
	program.Main("boots", func(ctx context.Context) error { return run(ctx, os.Args[1:], os.Stdout) })
}

func run(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("boots", flag.ContinueOnError)
	only := flags.String("faults", "", "`list` of faults by their IDs, with commas; default all")
	client := flags.Bool("go", false, "the Go machine for all faults, no firmware")
	wire := flags.Bool("wire", false, "ask the pod nothing: show only that the machines meet their faults")
	parallel := flags.Int("parallel", 3, "`number` of machines at once")
	patience := flags.Duration("patience", 150*time.Second, "how long a machine may take until its fault is named")
	dir := flags.String("out", "", "`directory` for result.json, capture and logs (default: build/boots)")
	if err := flags.Parse(args); err != nil {
		return flag.ErrHelp // flag has said why
	}
	faults, cases, err := choose(*only)
	if err != nil {
		return err
	}
	repo, err := program.Repo()
	if err != nil {
		return err
	}
	if *dir == "" {
		*dir = filepath.Join(repo, "build", "boots")
	}
	if *dir, err = filepath.Abs(*dir); err != nil {
		return err
	}
	if err := lab.Preflight(); err != nil {
		return err
	}
	start := time.Now()
	logf := func(format string, args ...any) {
		fmt.Fprintf(out, "%6.1f s  %s\n", time.Since(start).Seconds(), fmt.Sprintf(format, args...))
	}
	o := boots.Options{
		Faults: faults, Dir: *dir, Parallel: *parallel, Patience: *patience, WireOnly: *wire, Logf: logf,
		Done: func(r boots.Result) {
			state := "ok"
			if !r.OK {
				state = "FAILED: " + r.Verdict + " " + r.Trouble
			}
			logf("%-3s %-26s %s: %s %s %s", r.Row, r.Fault, r.Machine, r.Said, state, r.Text)
		},
	}
	if !*client {
		o.Virtual = boots.WithFirmware
	}
	if o.Media, err = media(ctx, repo, !*client, logf); err != nil {
		return err
	}
	results, err := stage(ctx, o, cases)
	path := filepath.Join(*dir, "result.json")
	if err := errors.Join(err, program.WriteJSON(path, results)); err != nil {
		return err
	}
	fmt.Fprintln(out)
	if err := boots.Table(out, results); err != nil {
		return err
	}
	score := boots.Count(results)
	fmt.Fprintf(out, "\n%s\nresult   %s\n", score, path)
	return score.Failure()
}

// stage stages faults and cases side by side.
func stage(ctx context.Context, o boots.Options, cases []boots.Case) ([]boots.Result, error) {
	var judged []boots.Result
	judging := make(chan error, 1)
	go func() {
		var err error
		judged, err = boots.RunCases(ctx, o, cases)
		judging <- err
	}()
	var results []boots.Result
	var err error
	if len(o.Faults) > 0 {
		results, err = boots.Run(ctx, o)
	}
	err = errors.Join(err, <-judging)
	return append(results, judged...), err
}

// choose finds faults and cases by their IDs.
func choose(list string) (faults []boots.Fault, cases []boots.Case, err error) {
	if list == "" {
		return boots.Faults(), boots.Cases(), nil
	}
	var ids []string
	wanted := strings.Split(list, ",")
	for _, f := range boots.Faults() {
		ids = append(ids, f.ID())
		if slices.Contains(wanted, f.ID()) {
			faults = append(faults, f)
		}
	}
	for _, c := range boots.Cases() {
		ids = append(ids, c.ID())
		if slices.Contains(wanted, c.ID()) {
			cases = append(cases, c)
		}
	}
	for _, id := range wanted {
		if !slices.Contains(ids, id) {
			return nil, nil, fmt.Errorf("-faults: %q is none of %s", id, strings.Join(ids, ", "))
		}
	}
	return faults, cases, nil
}

// media prepares what machines boot: with a kernel for firmware.
func media(ctx context.Context, repo string, firmware bool, logf func(string, ...any)) (machine.Media, error) {
	var boots *kernel.Kernel
	dir := "media-go"
	if firmware {
		if missing := machine.Missing(); len(missing) > 0 {
			return machine.Media{}, fmt.Errorf("real firmware needs the Debian packages %s", strings.Join(missing, ", "))
		}
		fetched, err := kernel.Fetch(ctx, filepath.Join(repo, "build", "cache", "kernel"), kernel.Machine, logf)
		if err != nil {
			return machine.Media{}, err
		}
		boots, dir = &fetched, "media"
	}
	dir = filepath.Join(repo, "build", "cache", dir)
	return machine.PrepareMedia(ctx, filepath.Join(repo, "test", "e2e"), dir, boots)
}
