package proxy

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"time"

	"github.com/tinkerbell/stack/test/e2e/bench/rounds"
	"github.com/tinkerbell/stack/test/e2e/process"
)

var wrkRequests = regexp.MustCompile(`(?m)^\s*(\d+) requests in ([0-9.]+)s`)

// measureSmall has wrk ask for a small answer as fast as it can, on 32 connections.
func measureSmall(ctx context.Context, b *bench, c *candidate) (rounds.Sample, error) {
	used := c.CPU()
	wrk, err := process.Find("wrk")
	if err != nil {
		return nil, fmt.Errorf("failed to find wrk (Debian: wrk): %w", err)
	}
	cmd := exec.CommandContext(ctx, wrk, "-t1", "-c32", "-d"+strconv.Itoa(max(int(b.Duration.Seconds()), 1))+"s",
		"http://"+c.http+"/auto.ipxe")
	out, err := cmd.CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("failed to run wrk: %w\n%s", err, out)
	}
	cpu := c.CPU() - used
	match := wrkRequests.FindSubmatch(out)
	if match == nil || bytes.Contains(out, []byte("Non-2xx")) {
		return nil, fmt.Errorf("wrk did not do its work:\n%s", out)
	}
	requests, _ := strconv.ParseFloat(string(match[1]), 64)
	seconds, _ := strconv.ParseFloat(string(match[2]), 64)
	s := rounds.Sample{"req_per_s": requests / seconds}
	if c.Process != nil {
		s["req_per_cpu_s"] = requests / cpu
	}
	return s, nil
}

const (
	rate        = 5000
	rateClients = 50
)

// measureRate asks at a fixed rate whatever the answers do.
func measureRate(ctx context.Context, b *bench, c *candidate) (rounds.Sample, error) {
	pids := append(append(c.PIDs(), b.backends.nginx.PIDs()...), os.Getpid())
	if err := process.Realtime(pids...); err != nil {
		return nil, err
	}
	defer func() { _ = process.Ordinary(append(b.backends.nginx.PIDs(), os.Getpid())...) }()
	used, begun := c.CPU(), time.Now()
	all, err := paced(ctx, netip.MustParseAddrPort(c.http), begun, begun.Add(b.Duration))
	if err != nil {
		return nil, fmt.Errorf("failed to ask at a fixed rate: %w", err)
	}
	cpu := c.CPU() - used
	slices.Sort(all)
	at := func(share float64) float64 { return float64(all[int(share*float64(len(all)-1))].Nanoseconds()) / 1e3 }
	s := rounds.Sample{"p50_us": at(0.5), "p99_us": at(0.99)}
	if c.Process != nil {
		s["cpu_pct"] = cpu / time.Since(begun).Seconds() * 100
	}
	return s, ctx.Err()
}
