// bench-proxy measures stack-proxy's TCP and HTTP routes against nginx and HAProxy and writes the rows as JSON. It
// needs root: it works in a network namespace of its own.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/tinkerbell/stack/test/e2e/bench/proxy"
	"github.com/tinkerbell/stack/test/e2e/bench/report"
	"github.com/tinkerbell/stack/test/e2e/network"
	"github.com/tinkerbell/stack/test/e2e/program"
)

func main() { program.Main("bench-proxy", run) }

func run(ctx context.Context) error {
	o := proxy.Options{Log: os.Stderr}
	flag.StringVar(&o.Proxy, "proxy", "build/bin/stack-proxy", "the stack-proxy executable")
	flag.StringVar(&o.Forwarder, "forwarder", "",
		"the executable of stack-lb's forwarding, beside it; empty leaves it out")
	flag.IntVar(&o.Runs, "runs", 5, "rounds")
	flag.DurationVar(&o.Duration, "duration", 3*time.Second, "time of one measurement")
	cases := flag.String("cases", "", "some of "+strings.Join(proxy.CaseNames(), ",")+"; empty is all")
	out := flag.String("out", "build/bench/proxy.json", "where the rows go; rows of other cases in it stay")
	flag.BoolVar(&o.Boots, "boots", false, "compare stack-proxy with itself, telling of boots and not")
	flag.Parse()
	if done, err := network.Enter(ctx); done || err != nil {
		return err
	}
	if _, err := os.Stat(o.Proxy); err != nil {
		return fmt.Errorf("failed to find stack-proxy (make build makes it): %w", err)
	}
	if *cases != "" {
		o.Cases = strings.Split(*cases, ",")
	}
	rows, err := proxy.Run(ctx, o)
	if err != nil {
		return err
	}
	report.Print(os.Stdout, rows)
	return report.Write(*out, rows)
}
