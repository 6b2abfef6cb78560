// soak-boot has storms of machines follow each other through the pod, and judges whether stack-proxy and dhcp-relay
// stay as small as they were. It needs root.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/tinkerbell/stack/test/e2e/lab"
	"github.com/tinkerbell/stack/test/e2e/storm"
)

func main() {
	lab.Init()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "soak-boot:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	o := storm.SoakOptions{Log: os.Stderr}
	flag.DurationVar(&o.Duration, "duration", 30*time.Minute, "of all storms")
	flag.IntVar(&o.Machines, "machines", 50, "machines of a storm")
	flag.Float64Var(&o.Loss, "loss", 0, "how many of 100 packets are lost")
	flag.StringVar(&o.Dir, "dir", "build/soak-boot", "where result.json, result.md and logs go")
	flag.Parse()
	var err error
	if o.Dir, err = filepath.Abs(o.Dir); err != nil {
		return err
	}
	if err := os.MkdirAll(o.Dir, 0o755); err != nil {
		return fmt.Errorf("failed to make directory of results: %w", err)
	}
	result, err := storm.Soak(ctx, o)
	if err != nil {
		return err
	}
	encoded, err := json.MarshalIndent(result, "", " ")
	if err != nil {
		return err
	}
	report := result.Markdown()
	fmt.Println(report)
	err = errors.Join(os.WriteFile(filepath.Join(o.Dir, "result.json"), encoded, 0o644),
		os.WriteFile(filepath.Join(o.Dir, "result.md"), []byte(report), 0o644))
	if err != nil {
		return fmt.Errorf("failed to write result: %w", err)
	}
	if len(result.Failures) > 0 {
		return fmt.Errorf("%d things went wrong, see %s", len(result.Failures), o.Dir)
	}
	return nil
}
