// bench-datagram measures stack-proxy's UDP routes against nginx and writes the rows as JSON. It needs root.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"strings"

	"github.com/tinkerbell/stack/test/e2e/bench/datagram"
	"github.com/tinkerbell/stack/test/e2e/bench/report"
	"github.com/tinkerbell/stack/test/e2e/process"
	"github.com/tinkerbell/stack/test/e2e/program"
)

func main() { program.Main("bench-datagram", run) }

func run(ctx context.Context) error {
	proxy := flag.String("proxy", "build/bin/stack-proxy", "the stack-proxy executable")
	found, _ := process.Find("nginx") // empty where there is none
	nginx := flag.String("nginx", found, "the nginx executable with its stream module; empty leaves it out")
	runs := flag.Int("runs", 5, "rounds")
	cases := flag.String("cases", "", "some of "+strings.Join(datagram.CaseNames(), ",")+"; empty is all")
	out := flag.String("out", "build/bench/proxy.json", "where the rows go; rows of other cases in it stay")
	flag.Parse()
	if _, err := os.Stat(*proxy); err != nil {
		return fmt.Errorf("failed to find stack-proxy (make build makes it): %w", err)
	}
	o := datagram.Options{Proxy: *proxy, Nginx: *nginx, Runs: *runs, Log: os.Stderr}
	if *cases != "" {
		o.Cases = strings.Split(*cases, ",")
	}
	rows, err := datagram.Run(ctx, o)
	if err != nil {
		return err
	}
	if err := report.Write(*out, rows); err != nil {
		return err
	}
	_, err = fmt.Fprint(os.Stdout, datagram.Markdown(rows))
	return err
}
