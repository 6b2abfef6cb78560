package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"

	"github.com/tinkerbell/stack/test/e2e/bench/report"
	"github.com/tinkerbell/stack/test/e2e/storm"
)

// measureBoot has machines by the hundred boot at once, through our pod and the former chart's, interleaved.
func measureBoot(ctx context.Context, f *flags, args []string) error {
	b := storm.Bench{Log: os.Stderr, Candidates: storm.Candidates()}
	numbers, losses := []string{"100", "300", "1000"}, []string{"0", "1"}
	f.list("machines", "how many machines boot at once, a case for each number; 100,300,1000", &numbers)
	f.list("loss", "how many of 100 packets are lost, a case for each number; 0,1", &losses)
	f.list("candidates", "pods to measure; all", &b.Candidates)
	f.BoolVar(&b.Large, "large", true, "20 machines with a file of 100 MiB each, too")
	f.rounds(&b.Runs, 5, nil, 0)
	f.Int64Var(&b.Options.Kernel, "kernel", 2<<20, "bytes of the kernel")
	f.Int64Var(&b.Options.Initramfs, "initramfs", 8<<20, "bytes of the initramfs")
	f.DurationVar(&b.Options.Spread, "spread", 0, "time in which machines are switched on; default 1s")
	f.DurationVar(&b.Options.Patience, "patience", 0, "how long a step may hear nothing new; default 90s")
	f.StringVar(&b.Options.Dir, "dir", "build/bench/storm", "where files and logs go")
	f.StringVar(&b.Options.Peers, "peers", "build/bench/peers", "directory for the packages of peers")
	f.BoolVar(&b.Options.Unlimited, "unlimited", false, "without the chart's limits of memory")
	f.StringVar(&b.Profile, "profile", "", "`directory` for processor profiles of our programs")
	f.DurationVar(&b.Within, "within", 0, "after which nothing more is begun: the same command again goes on; "+
		"0 measures all anew, in one go")
	f.StringVar(&b.Samples, "samples", "build/bench/boot-storm.samples.json", "what was measured so far, for -within")
	f.rows("build/bench/boot-storm.json")
	_ = f.Parse(args)
	var err1, err2, err3 error
	b.Machines, err1 = parsed(numbers, strconv.Atoi)
	b.Losses, err2 = parsed(losses, func(word string) (float64, error) { return strconv.ParseFloat(word, 64) })
	b.Options.Dir, err3 = filepath.Abs(b.Options.Dir)
	if err := errors.Join(err1, err2, err3); err != nil {
		return err
	}
	rows, err := b.Run(ctx)
	if err != nil {
		return err
	}
	storm.Table(os.Stdout, rows)
	return report.Write(*f.out, rows)
}

func parsed[T any](words []string, parse func(string) (T, error)) (values []T, err error) {
	for _, word := range words {
		value, err := parse(word)
		if err != nil {
			return nil, err
		}
		values = append(values, value)
	}
	return values, nil
}
