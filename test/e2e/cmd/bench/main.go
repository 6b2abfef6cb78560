// bench measures the programs of the stack beside others, prints the rows, and writes them as JSON: "bench proxy -h"
// tells the flags. Most benches need root, and work in network namespaces of their own.
package main

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/tinkerbell/stack/test/e2e/bench/report"
	"github.com/tinkerbell/stack/test/e2e/lab"
	"github.com/tinkerbell/stack/test/e2e/program"
)

// benches by name. Each declares its flags, parses the arguments, and measures.
var benches = map[string]func(ctx context.Context, f *flags, args []string) error{
	"boot":         measureBoot,
	"boots-looked": measureBootsLooked,
	"datagram":     measureDatagram,
	"edge":         measureEdge,
	"proxy":        measureProxy,
	"relay":        measureRelay,
}

func main() {
	lab.Init()
	program.Main("bench", run)
}

func run(ctx context.Context) error {
	names := strings.Join(slices.Sorted(maps.Keys(benches)), ", ")
	if len(os.Args) < 2 || benches[os.Args[1]] == nil {
		return fmt.Errorf("want one of %s, and its flags", names)
	}
	name := os.Args[1]
	return benches[name](ctx, &flags{FlagSet: flag.NewFlagSet("bench "+name, flag.ExitOnError)}, os.Args[2:])
}

// flags are a bench's, those of several benches among them.
type flags struct {
	*flag.FlagSet
	out *string
}

// rounds declares how often and for how long is measured.
func (f *flags) rounds(runs *int, most int, duration *time.Duration, each time.Duration) {
	f.IntVar(runs, "runs", most, "rounds")
	if duration != nil {
		f.DurationVar(duration, "duration", each, "time of one measurement")
	}
}

// cases declares which cases are measured, of those with names.
func (f *flags) cases(some *[]string, names []string) {
	f.list("cases", "some of "+strings.Join(names, ",")+"; empty is all", some)
}

// list declares values that are separated by commas.
func (f *flags) list(name, usage string, to *[]string) {
	f.Func(name, usage, func(text string) error {
		if *to = nil; text != "" {
			*to = strings.Split(text, ",")
		}
		return nil
	})
}

// rows declares where the rows go.
func (f *flags) rows(path string) {
	f.out = f.String("out", path, "where the rows go; rows of other cases in it stay")
}

// report prints the rows, and writes them.
func (f *flags) report(rows []report.Row) error {
	report.Print(os.Stdout, rows)
	return report.Write(*f.out, rows)
}

// found is an error unless a file is there.
func found(target string, paths ...string) error {
	for _, path := range paths {
		if _, err := os.Stat(path); err != nil {
			return fmt.Errorf("failed to find what to measure (make %s makes it): %w", target, err)
		}
	}
	return nil
}
