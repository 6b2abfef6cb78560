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
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/tinkerbell/stack/test/e2e/boots"
	"github.com/tinkerbell/stack/test/e2e/kernel"
	"github.com/tinkerbell/stack/test/e2e/lab"
	"github.com/tinkerbell/stack/test/e2e/machine"
	"github.com/tinkerbell/stack/test/e2e/program"
)

func main() {
	lab.Init()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if errors.Is(err, flag.ErrHelp) {
		os.Exit(2)
	}
	if err != nil {
		fmt.Println("FAILED:", strings.Join(strings.Fields(err.Error()), " ")) // one line, the last
		os.Exit(1)
	}
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
	faults, err := choose(*only)
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
				state = "FAILED: " + r.Trouble
			}
			logf("%-5s %-26s %s %s %s", r.Machine, r.Fault, r.Said, state, r.Text)
		},
	}
	if !*client {
		o.Virtual = boots.WithFirmware
	}
	if o.Media, err = media(ctx, repo, !*client, logf); err != nil {
		return err
	}
	results, err := boots.Run(ctx, o)
	if err != nil {
		return err
	}
	path := filepath.Join(*dir, "result.json")
	if err := boots.Write(path, results); err != nil {
		return err
	}
	fmt.Fprintln(out)
	if err := boots.Table(out, results); err != nil {
		return err
	}
	fmt.Fprintf(out, "\nresult   %s\n", path)
	wrong := slices.DeleteFunc(results, func(r boots.Result) bool { return r.OK })
	if len(wrong) > 0 {
		return fmt.Errorf("%d of %d faults are not named right", len(wrong), len(faults))
	}
	logf("all faults are named right")
	return nil
}

// choose finds faults by their IDs.
func choose(list string) (chosen []boots.Fault, err error) {
	all := boots.Faults()
	if list == "" {
		return all, nil
	}
	for id := range strings.SplitSeq(list, ",") {
		i := slices.IndexFunc(all, func(f boots.Fault) bool { return f.ID() == id })
		if i < 0 {
			var ids []string
			for _, f := range all {
				ids = append(ids, f.ID())
			}
			return nil, fmt.Errorf("-faults: %q is none of %s", id, strings.Join(ids, ", "))
		}
		chosen = append(chosen, all[i])
	}
	return chosen, nil
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
