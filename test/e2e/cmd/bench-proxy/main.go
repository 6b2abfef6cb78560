// bench-proxy measures stack-proxy's TCP and HTTP routes against nginx and HAProxy and writes the rows as JSON. It
// needs root: it works in a network namespace of its own.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/tinkerbell/stack/test/e2e/bench/proxy"
	"github.com/tinkerbell/stack/test/e2e/bench/report"
)

// inside marks the process that is in the namespace.
const inside = "BENCH_PROXY_INSIDE"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx)
	stop()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit): // it has said why
		os.Exit(1)
	case err != nil:
		fmt.Fprintln(os.Stderr, "bench-proxy:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	o := proxy.Options{Log: os.Stderr}
	flag.StringVar(&o.Proxy, "proxy", "build/bin/stack-proxy", "the stack-proxy executable")
	flag.IntVar(&o.Runs, "runs", 5, "rounds")
	flag.DurationVar(&o.Duration, "duration", 3*time.Second, "time of one measurement")
	cases := flag.String("cases", "", "some of "+strings.Join(proxy.CaseNames(), ",")+"; empty is all")
	out := flag.String("out", "build/bench/proxy.json", "where the rows go; rows of other cases in it stay")
	flag.BoolVar(&o.Boots, "boots", false, "compare stack-proxy with itself, showing boots and not")
	flag.Parse()
	if os.Getenv(inside) == "" {
		return again(ctx)
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
	for _, r := range rows {
		fmt.Fprintf(os.Stdout, "%-12s %-12s %-20s %12.2f %-7s (%.2f to %.2f, %d runs)\n",
			r.Case, r.Candidate, r.Metric, r.Median, r.Unit, r.Min, r.Max, r.Runs)
	}
	return report.Write(*out, rows)
}

// again starts this program in a network namespace of its own.
func again(ctx context.Context) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, self, os.Args[1:]...)
	cmd.Env = append(os.Environ(), inside+"=1")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGTERM}
	if err := cmd.Run(); errors.Is(err, os.ErrPermission) {
		return fmt.Errorf("failed to make a network namespace (it needs root): %w", err)
	} else if err != nil {
		return err
	}
	return nil
}
