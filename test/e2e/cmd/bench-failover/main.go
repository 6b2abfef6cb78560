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

	"github.com/tinkerbell/stack/test/e2e/bench/failover"
	"github.com/tinkerbell/stack/test/e2e/program"
)

func main() { program.Main("bench-failover", run) }

func run(ctx context.Context) error {
	o := failover.Options{Log: os.Stderr}
	flag.StringVar(&o.Program, "lb", "build/bin/stack-lb", "the stack-lb executable")
	flag.IntVar(&o.Nodes, "nodes", 3, "nodes")
	flag.IntVar(&o.Repeats, "repeats", 20, "how often each case happens")
	flag.BoolVar(&o.Short, "short", false, "with the shortest lease (3 s) in place of the default (6 s)")
	flag.BoolVar(&o.Key, "key", false, "with a key, by which nodes keep the address while the API is away")
	flag.DurationVar(&o.Steady, "steady", 0, "let nothing happen for as long, in place of the cases")
	cases := flag.String("cases", "", "cases, separated by commas; empty: all")
	out := flag.String("out", "build/bench/failover.json", "where the result goes; it adds to what is there")
	flag.Parse()
	if *cases != "" {
		o.Cases = strings.Split(*cases, ",")
	}
	part, fault := failover.Run(ctx, o)
	if len(part.Tries) == 0 {
		return fault
	}
	result, err := failover.Add(*out, part)
	if err != nil {
		return errors.Join(fault, err)
	}
	fmt.Fprint(os.Stdout, result.Text())
	return fault
}
