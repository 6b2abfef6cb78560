// soak-boot has storms of machines follow each other through the pod, and judges whether stack-proxy and dhcp-relay
// stay as small as they were. It needs root.
package main

import (
	"context"
	"flag"
	"os"
	"time"

	"github.com/tinkerbell/stack/test/e2e/bench/report"
	"github.com/tinkerbell/stack/test/e2e/lab"
	"github.com/tinkerbell/stack/test/e2e/program"
	"github.com/tinkerbell/stack/test/e2e/storm"
)

func main() {
	lab.Init()
	program.Main("soak-boot", run)
}

func run(ctx context.Context) error {
	o := storm.SoakOptions{Log: os.Stderr}
	flag.DurationVar(&o.Duration, "duration", 30*time.Minute, "of all storms")
	flag.IntVar(&o.Machines, "machines", 50, "machines of a storm")
	flag.Float64Var(&o.Loss, "loss", 0, "how many of 100 packets are lost")
	flag.StringVar(&o.Dir, "dir", "build/soak-boot", "where result.json, result.md and logs go")
	flag.Parse()
	var err error
	if o.Dir, err = report.Directory(o.Dir); err != nil {
		return err
	}
	result, err := storm.Soak(ctx, o)
	if err != nil {
		return err
	}
	return report.Judge(o.Dir, result, result.Markdown(), len(result.Failures))
}
