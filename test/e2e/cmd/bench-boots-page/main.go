// bench-boots-page measures how fast stack-proxy shows machines while many boot, and writes the rows as JSON.
package main

import (
	"context"
	"flag"
	"os"
	"time"

	"github.com/tinkerbell/stack/test/e2e/bench/bootspage"
	"github.com/tinkerbell/stack/test/e2e/bench/report"
	"github.com/tinkerbell/stack/test/e2e/program"
)

func main() { program.Main("bench-boots-page", run) }

func run(ctx context.Context) error {
	o := bootspage.Options{Log: os.Stderr}
	flag.StringVar(&o.Proxy, "proxy", "build/bin/stack-proxy", "the stack-proxy executable")
	flag.StringVar(&o.Boots, "boots", "build/bin/stack-boots", "the stack-boots executable")
	flag.IntVar(&o.Machines, "machines", 2000, "machines that boot at once")
	flag.DurationVar(&o.Duration, "duration", 12*time.Second, "time in which they do")
	flag.IntVar(&o.Runs, "runs", 3, "rounds")
	out := flag.String("out", "build/bench/boot.json", "where the rows go; rows of other cases in it stay")
	flag.Parse()
	rows, err := bootspage.Run(ctx, o)
	if err != nil {
		return err
	}
	report.Print(os.Stdout, rows)
	return report.Write(*out, rows)
}
