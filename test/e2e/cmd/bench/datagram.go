package main

import (
	"context"
	"fmt"
	"os"

	"github.com/tinkerbell/stack/test/e2e/bench/datagram"
	"github.com/tinkerbell/stack/test/e2e/bench/report"
	"github.com/tinkerbell/stack/test/e2e/process"
)

// measureDatagram measures stack-proxy's UDP routes against nginx.
func measureDatagram(ctx context.Context, f *flags, args []string) error {
	o := datagram.Options{Log: os.Stderr}
	nginx, _ := process.Find("nginx") // empty where there is none
	f.StringVar(&o.Proxy, "proxy", "build/bin/stack-proxy", "the stack-proxy executable")
	f.StringVar(&o.Nginx, "nginx", nginx, "the nginx executable with its stream module; empty leaves it out")
	f.rounds(&o.Runs, 5, nil, 0)
	f.cases(&o.Cases, datagram.CaseNames())
	f.rows("build/bench/proxy.json")
	_ = f.Parse(args)
	if err := found("bench-datagram", o.Proxy); err != nil {
		return err
	}
	rows, err := datagram.Run(ctx, o)
	if err != nil {
		return err
	}
	if err := report.Write(*f.out, rows); err != nil {
		return err
	}
	_, err = fmt.Fprint(os.Stdout, datagram.Markdown(rows))
	return err
}
