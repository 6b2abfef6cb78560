package main

import (
	"context"
	"os"
	"time"

	"github.com/tinkerbell/stack/test/e2e/bench/bootspage"
)

// measureBootsLooked measures the memory of stack-boots while many machines boot and many people look.
func measureBootsLooked(ctx context.Context, f *flags, args []string) error {
	var l bootspage.Looked
	l.Log = os.Stderr
	f.StringVar(&l.Proxy, "proxy", "build/bin/stack-proxy", "the stack-proxy executable")
	f.StringVar(&l.Boots, "boots", "build/bin/stack-boots", "the stack-boots executable")
	f.IntVar(&l.Machines, "machines", 10000, "machines that boot")
	f.IntVar(&l.Viewers, "viewers", 20, "those who look")
	memory := f.Int64("memory", 192, "of the container, in MiB")
	f.rounds(&l.Runs, 1, &l.Duration, time.Minute)
	f.rows("build/bench/boot.json")
	_ = f.Parse(args)
	l.Memory = *memory << 20
	rows, err := l.Run(ctx)
	if err != nil {
		return err
	}
	return f.report(rows)
}
