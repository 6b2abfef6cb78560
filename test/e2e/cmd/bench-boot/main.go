// bench-boot has machines by the hundred boot at once, through our pod and the former chart's, interleaved, and writes
// the rows as JSON. It needs root.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/tinkerbell/stack/test/e2e/bench/report"
	"github.com/tinkerbell/stack/test/e2e/lab"
	"github.com/tinkerbell/stack/test/e2e/storm"
)

func main() {
	lab.Init()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench-boot:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	b := storm.Bench{Log: os.Stderr}
	numbers := flag.String("machines", "100,300,1000", "how many machines boot at once, a case for each number")
	losses := flag.String("loss", "0,1", "how many of 100 packets are lost, a case for each number")
	candidates := flag.String("candidates", strings.Join(storm.Candidates(), ","), "pods to measure")
	flag.BoolVar(&b.Large, "large", true, "20 machines with a file of 100 MiB each, too")
	flag.IntVar(&b.Runs, "runs", 5, "rounds")
	flag.Int64Var(&b.Options.Kernel, "kernel", 2<<20, "bytes of the kernel")
	flag.Int64Var(&b.Options.Initramfs, "initramfs", 8<<20, "bytes of the initramfs")
	flag.DurationVar(&b.Options.Spread, "spread", 0, "time in which machines are switched on; default 1s")
	flag.DurationVar(&b.Options.Patience, "patience", 0, "how long a step may hear nothing new; default 90s")
	flag.StringVar(&b.Options.Dir, "dir", "build/bench/storm", "where files and logs go")
	flag.StringVar(&b.Options.Peers, "peers", "build/bench/peers", "directory for the packages of peers")
	flag.BoolVar(&b.Options.Unlimited, "unlimited", false, "without the chart's limits of memory")
	flag.StringVar(&b.Profile, "profile", "", "`directory` for processor profiles of stack-proxy and dhcp-relay")
	flag.DurationVar(&b.Within, "within", 0, "after which nothing more is begun: the same command again goes on; "+
		"0 measures all anew, in one go")
	flag.StringVar(&b.Samples, "samples", "build/bench/boot-storm.samples.json", "what was measured so far, for -within")
	out := flag.String("out", "build/bench/boot-storm.json", "where the rows go; rows of other cases in it stay")
	flag.Parse()
	var err1, err2, err3 error
	b.Machines, err1 = list(*numbers, strconv.Atoi)
	b.Losses, err2 = list(*losses, func(word string) (float64, error) { return strconv.ParseFloat(word, 64) })
	b.Candidates = strings.Split(*candidates, ",")
	b.Options.Dir, err3 = filepath.Abs(b.Options.Dir)
	if err := errors.Join(err1, err2, err3); err != nil {
		return err
	}
	rows, err := b.Run(ctx)
	if err != nil {
		return err
	}
	storm.Table(os.Stdout, rows)
	return report.Write(*out, rows)
}

// list reads values that are separated by commas; empty is none.
func list[T any](text string, parse func(string) (T, error)) ([]T, error) {
	var values []T
	for word := range strings.SplitSeq(text, ",") {
		if word == "" {
			continue
		}
		value, err := parse(word)
		if err != nil {
			return nil, err
		}
		values = append(values, value)
	}
	return values, nil
}
