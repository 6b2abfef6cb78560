// bench-failover measures how long the address of a Service is away when the node that has it goes, and looks whether
// two nodes ever have it at one time. It writes the result as JSON.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/tinkerbell/stack/test/e2e/bench/failover"
	"github.com/tinkerbell/stack/test/e2e/program"
)

func main() { program.Main("bench-failover", run) }

func run(ctx context.Context) error {
	o := failover.Options{Log: os.Stderr}
	flag.StringVar(&o.Balancer, "balancer", "stack-lb", "stack-lb, keepalived or metallb")
	flag.StringVar(&o.StackLB, "lb", "build/bin/stack-lb", "the stack-lb executable")
	flag.StringVar(&o.Older, "older", "", "a stack-lb of before, for the case two-versions")
	flag.IntVar(&o.Nodes, "nodes", 3, "nodes")
	flag.IntVar(&o.Addresses, "addresses", 1, "addresses, 155 at most")
	flag.StringVar(&o.Proxy, "proxy", "nftables", "kube-proxy's mode")
	flag.IntVar(&o.Repeats, "repeats", 20, "how often each case happens, but those that take long")
	flag.BoolVar(&o.Short, "short", false, "with the shortest lease (3 s) in place of the default (6 s)")
	flag.DurationVar(&o.Steady, "steady", 30*time.Second, "how long nothing happens in the case of that name")
	flag.BoolVar(&o.Keep, "keep", false, "leave the logs of all programs")
	cases := flag.String("cases", "", `cases, separated by commas; "chaos" is all of those; empty: all others`)
	all := flag.Bool("all", false, "all cases of all balancers, whatever the flags above say of them")
	out := flag.String("out", "build/bench/failover.json", "where the result goes; it adds to what is there")
	flag.Parse()
	if *cases != "" {
		o.Cases = strings.Split(*cases, ",")
	}
	parts := []failover.Options{o}
	if *all {
		parts = o.Plan()
	}
	var faults []error
	var result *failover.Result
	for _, each := range parts {
		part, fault := failover.Run(ctx, each)
		faults = append(faults, fault)
		if len(part.Tries) == 0 {
			continue
		}
		var err error
		if result, err = failover.Add(*out, part); err != nil {
			return errors.Join(append(faults, err)...)
		}
	}
	if result != nil {
		fmt.Fprint(os.Stdout, result.Text())
	}
	return errors.Join(faults...)
}
