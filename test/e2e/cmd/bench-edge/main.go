// bench-edge measures stack-proxy's files, TLS and tokens against nginx and writes the rows as JSON. It needs root:
// it works in a network namespace of its own.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/tinkerbell/stack/test/e2e/bench/edge"
	"github.com/tinkerbell/stack/test/e2e/bench/report"
	"github.com/tinkerbell/stack/test/e2e/network"
	"github.com/tinkerbell/stack/test/e2e/program"
)

func main() { program.Main("bench-edge", run) }

func run(ctx context.Context) error {
	o := edge.Options{Log: os.Stderr}
	flag.StringVar(&o.Proxy, "proxy", "build/bin/stack-proxy", "the stack-proxy executable")
	flag.StringVar(&o.Tokens, "tokens", "build/bin/jwt.test", "the test program of pkg/edge/jwt")
	flag.IntVar(&o.Runs, "runs", 5, "rounds")
	flag.DurationVar(&o.Duration, "duration", 3*time.Second, "time of one measurement")
	cases := flag.String("cases", "", "some of "+strings.Join(edge.CaseNames(), ",")+"; empty is all")
	out := flag.String("out", "build/bench/edge.json", "where the rows go; rows of other cases in it stay")
	flag.Parse()
	if done, err := network.Enter(ctx); done || err != nil {
		return err
	}
	for _, path := range []string{o.Proxy, o.Tokens} {
		if _, err := os.Stat(path); err != nil {
			return fmt.Errorf("failed to find what to measure (make bench-edge makes it): %w", err)
		}
	}
	if *cases != "" {
		o.Cases = strings.Split(*cases, ",")
	}
	rows, err := edge.Run(ctx, o)
	if err != nil {
		return err
	}
	report.Print(os.Stdout, rows)
	return report.Write(*out, rows)
}
