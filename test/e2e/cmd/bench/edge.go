package main

import (
	"context"
	"os"
	"time"

	"github.com/tinkerbell/stack/test/e2e/bench/edge"
	"github.com/tinkerbell/stack/test/e2e/bench/peers"
	"github.com/tinkerbell/stack/test/e2e/network"
)

// measureEdge measures stack-proxy's files, TLS and tokens against nginx.
func measureEdge(ctx context.Context, f *flags, args []string) error {
	o := edge.Options{Log: os.Stderr}
	f.StringVar(&o.Proxy, "proxy", "build/bin/stack-proxy", "the stack-proxy executable")
	f.StringVar(&o.Tokens, "tokens", "build/bin/jwt.test", "the test program of pkg/edge/jwt")
	f.rounds(&o.Runs, 5, &o.Duration, 3*time.Second)
	f.cases(&o.Cases, edge.CaseNames())
	f.rows("build/bench/edge.json")
	_ = f.Parse(args)
	_, _ = peers.Find(ctx, "nginx") // what cannot be had is left out
	if done, err := network.Enter(ctx); done || err != nil {
		return err
	}
	if err := found("bench-edge", o.Proxy, o.Tokens); err != nil {
		return err
	}
	rows, err := edge.Run(ctx, o)
	if err != nil {
		return err
	}
	return f.report(rows)
}
