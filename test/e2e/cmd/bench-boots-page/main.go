// bench-boots-page measures how fast stack-proxy shows machines while many boot, and writes the rows as JSON.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/tinkerbell/stack/test/e2e/bench/bootspage"
	"github.com/tinkerbell/stack/test/e2e/bench/report"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench-boots-page:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	o := bootspage.Options{Log: os.Stderr}
	flag.StringVar(&o.Proxy, "proxy", "build/bin/stack-proxy", "the stack-proxy executable")
	flag.IntVar(&o.Machines, "machines", 2000, "machines that boot at once")
	flag.DurationVar(&o.Duration, "duration", 12*time.Second, "time in which they do")
	flag.IntVar(&o.Runs, "runs", 3, "rounds")
	out := flag.String("out", "build/bench/boot.json", "where the rows go; rows of other cases in it stay")
	flag.Parse()
	rows, err := bootspage.Run(ctx, o)
	if err != nil {
		return err
	}
	for _, r := range rows {
		fmt.Fprintf(os.Stdout, "%-16s %-12s %-14s %9.2f %-8s (%.2f to %.2f, %d runs)\n",
			r.Case, r.Candidate, r.Metric, r.Median, r.Unit, r.Min, r.Max, r.Runs)
	}
	return report.Write(*out, rows)
}
