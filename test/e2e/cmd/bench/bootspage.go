package main

import (
	"context"
	"os"
	"time"

	"github.com/tinkerbell/stack/test/e2e/bench/bootspage"
)

// measureBootsPage measures how fast stack-boots shows machines while many boot.
func measureBootsPage(ctx context.Context, f *flags, args []string) error {
	o := bootspage.Options{Log: os.Stderr}
	f.StringVar(&o.Proxy, "proxy", "build/bin/stack-proxy", "the stack-proxy executable")
	f.StringVar(&o.Boots, "boots", "build/bin/stack-boots", "the stack-boots executable")
	f.IntVar(&o.Machines, "machines", 2000, "machines that boot at once")
	f.rounds(&o.Runs, 3, &o.Duration, 12*time.Second)
	f.rows("build/bench/boot.json")
	_ = f.Parse(args)
	rows, err := bootspage.Run(ctx, o)
	if err != nil {
		return err
	}
	return f.report(rows)
}
