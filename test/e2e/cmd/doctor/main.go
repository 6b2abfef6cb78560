// Command doctor stages the faults of a network and of servers, and asks stack-doctor what is in the way. See "make
// doctor".
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

	"github.com/tinkerbell/stack/test/e2e/doctor"
	"github.com/tinkerbell/stack/test/e2e/lab"
	"github.com/tinkerbell/stack/test/e2e/program"
)

func main() {
	lab.Init()
	program.Main("doctor", func(ctx context.Context) error { return run(ctx, os.Args[1:], os.Stdout) })
}

func run(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("doctor", flag.ContinueOnError)
	only := flags.String("faults", "", "`list` of faults by their IDs, with commas; default all")
	healthy := flags.Int("healthy", 10, "`number` of runs without a fault")
	text := flags.Bool("text", true, "look at the text as well")
	dir := flags.String("out", "", "`directory` for result.json and logs (default: build/doctor)")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if err := lab.Preflight(); err != nil {
		return err
	}
	repo, err := program.Repo()
	if err != nil {
		return err
	}
	if *dir == "" {
		*dir = filepath.Join(repo, "build", "doctor")
	}
	if *dir, err = filepath.Abs(*dir); err != nil {
		return err
	}
	faults := slices.DeleteFunc(doctor.Faults(), func(f doctor.Fault) bool {
		return *only != "" && !slices.Contains(strings.Split(*only, ","), f.ID())
	})
	if len(faults) == 0 && *only != "none" {
		return errors.New("-faults: none of them is known")
	}
	start := time.Now()
	logf := func(format string, args ...any) {
		fmt.Fprintf(out, "%6.1f s  %s\n", time.Since(start).Seconds(), fmt.Sprintf(format, args...))
	}
	o := doctor.Options{
		Faults: faults, Healthy: *healthy, Text: *text, Dir: filepath.Join(*dir, "lab"), Logf: logf,
	}
	results, err := doctor.Run(ctx, o)
	if err != nil {
		return err
	}
	if *only == "" || *only == "none" {
		of, err := doctor.Servers(ctx, o)
		if err != nil {
			return err
		}
		results = append(results, of...)
	}
	path := filepath.Join(*dir, "result.json")
	if err := program.WriteJSON(path, results); err != nil {
		return err
	}
	fmt.Fprintln(out)
	if err := doctor.Table(out, results); err != nil {
		return err
	}
	fmt.Fprintf(out, "\nresult   %s\n", path)
	if wrong := slices.DeleteFunc(results, func(r doctor.Result) bool { return r.OK }); len(wrong) > 0 {
		return fmt.Errorf("%d runs are not judged right", len(wrong))
	}
	return nil
}
