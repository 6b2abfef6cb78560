package main

import (
	"context"
	"os"
	"time"

	"github.com/tinkerbell/stack/test/e2e/bench/peers"
	"github.com/tinkerbell/stack/test/e2e/bench/proxy"
	"github.com/tinkerbell/stack/test/e2e/network"
)

// measureProxy measures stack-proxy's TCP and HTTP routes against nginx and HAProxy.
func measureProxy(ctx context.Context, f *flags, args []string) error {
	o := proxy.Options{Log: os.Stderr}
	f.StringVar(&o.Proxy, "proxy", "build/bin/stack-proxy", "the stack-proxy executable")
	f.BoolVar(&o.Boots, "boots", false, "compare stack-proxy with itself, telling of boots and not")
	f.rounds(&o.Runs, 5, &o.Duration, 3*time.Second)
	f.cases(&o.Cases, proxy.CaseNames())
	f.rows("build/bench/proxy.json")
	_ = f.Parse(args)
	_, _ = peers.Find(ctx, "nginx")   // what cannot be had is left out
	_, _ = peers.Find(ctx, "haproxy") // what cannot be had is left out
	if done, err := network.Enter(ctx); done || err != nil {
		return err
	}
	if err := found("bench-proxy", o.Proxy); err != nil {
		return err
	}
	rows, err := proxy.Run(ctx, o)
	if err != nil {
		return err
	}
	return f.report(rows)
}
