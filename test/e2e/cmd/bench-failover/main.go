// bench-failover measures how long the address of a Service is away when the node that has it goes, and looks whether
// two nodes ever have it at one time. It writes the rows as JSON.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/tinkerbell/stack/test/e2e/bench/failover"
	"github.com/tinkerbell/stack/test/e2e/bench/report"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench-failover:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	o := failover.Options{Log: os.Stderr}
	flag.StringVar(&o.Program, "lb", "build/bin/stack-lb", "the stack-lb executable")
	flag.IntVar(&o.Nodes, "nodes", 3, "nodes")
	flag.IntVar(&o.Repeats, "repeats", 20, "how often each case happens")
	flag.BoolVar(&o.Short, "short", false, "with the shortest lease (3 s) in place of the default (6 s)")
	cases := flag.String("cases", "", "cases, separated by commas; empty: all")
	out := flag.String("out", "build/bench/failover.json", "where the rows go; rows of other cases in it stay")
	flag.Parse()
	if *cases != "" {
		o.Cases = strings.Split(*cases, ",")
	}
	rows, err := failover.Run(ctx, o)
	if err != nil {
		return err
	}
	for _, r := range rows {
		fmt.Fprintf(os.Stdout, "%-16s %-10s %-12s %9.2f %-8s (%.2f to %.2f, %d runs)\n",
			r.Case, r.Candidate, r.Metric, r.Median, r.Unit, r.Min, r.Max, r.Runs)
	}
	return report.Write(*out, rows)
}
