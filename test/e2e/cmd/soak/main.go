// soak runs stack-proxy with every protocol at once while its routes and backends change, and judges whether it stays
// as small as it was. It needs root: it works in a network namespace of its own.
package main

import (
	"context"
	"flag"
	"os"
	"time"

	"github.com/tinkerbell/stack/test/e2e/bench/report"
	"github.com/tinkerbell/stack/test/e2e/network"
	"github.com/tinkerbell/stack/test/e2e/program"
	"github.com/tinkerbell/stack/test/e2e/soak"
)

func main() { program.Main("soak", run) }

func run(ctx context.Context) error {
	o := soak.Options{Log: os.Stderr, Full: true}
	flag.StringVar(&o.Proxy, "proxy", "build/bin/stack-proxy", "the stack-proxy executable")
	flag.DurationVar(&o.Duration, "duration", 30*time.Minute, "of the load")
	flag.DurationVar(&o.Idle, "idle", 0, "silence of the idle gRPC streams; default a third of the duration, at most 10m")
	flag.StringVar(&o.Dir, "dir", "build/soak", "where result.json, result.md and the proxy's log go")
	flag.Parse()
	if done, err := network.Enter(ctx); done || err != nil {
		return err
	}
	var err error
	if o.Dir, err = report.Directory(o.Dir); err != nil {
		return err
	}
	result, err := soak.Run(ctx, o)
	if err != nil {
		return err
	}
	return report.Judge(o.Dir, result, result.Markdown(), len(result.Failures))
}
