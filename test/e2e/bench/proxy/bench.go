// Package proxy measures stack-proxy's TCP and HTTP routes against nginx and HAProxy, interleaved in one run on one
// machine: compare the ratios, not the figures.
//
// Client, candidate and backend share the loopback of a network namespace of their own. The candidate's processor
// time is read from /proc, so what the client and the backend cost does not count.
package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/tinkerbell/stack/test/e2e/bench/report"
)

// Options of a run.
type Options struct {
	Proxy    string        // the stack-proxy executable
	Runs     int           // rounds, each of which measures every candidate once
	Duration time.Duration // of one measurement
	Cases    []string      // empty is all
	Log      io.Writer
}

// Row is a result, in the form of the relay's bench.
type Row = report.Row

// sample is what one measurement of a candidate says.
type sample map[string]float64

// benchCase is one kind of traffic.
type benchCase struct {
	name    string
	units   map[string]string // by metric
	only    []string          // the candidates that take part
	measure func(ctx context.Context, b *bench, c *candidate) (sample, error)
	settle  func(round map[string]sample) // where candidates' samples depend on each other
}

var cases = []benchCase{
	{
		name:    "tcp-bulk",
		units:   map[string]string{"cpu_s_per_gib": "s/GiB", "gbit_per_s": "Gbit/s"},
		only:    []string{ours, nginxTuned, haproxy},
		measure: measureBulk,
	},
	{
		name:    "tcp-connect",
		units:   map[string]string{"conns_per_s": "1/s", "cpu_us_per_conn": "us"},
		only:    []string{ours, nginxTuned, haproxy, direct},
		measure: measureConnect,
	},
	{
		name:    "http-small",
		units:   map[string]string{"req_per_s": "1/s", "req_per_cpu_s": "1/s"},
		only:    []string{ours, nginxChart, nginxTuned, haproxy, direct},
		measure: measureSmall,
	},
	{
		name: "http-5000",
		units: map[string]string{
			"p50_us": "us", "p99_us": "us", "added_p50_us": "us", "added_p99_us": "us", "cpu_pct": "%",
		},
		only:    []string{ours, nginxChart, nginxTuned, haproxy, direct},
		measure: measureRate,
		settle:  subtractDirect,
	},
	{
		name:    "idle-10000",
		units:   map[string]string{"kib_per_conn": "KiB", "kernel_kib_per_conn": "KiB", "connections": "1"},
		only:    []string{ours, nginxTuned, haproxy},
		measure: measureIdle,
	},
}

// CaseNames lists the cases.
func CaseNames() []string {
	var names []string
	for _, c := range cases {
		names = append(names, c.name)
	}
	return names
}

// bench is what all measurements share.
type bench struct {
	Options
	backends *backends
}

// Run measures and returns the rows. The process must be in a network namespace of its own, as root.
func Run(ctx context.Context, o Options) ([]Row, error) {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return nil, fmt.Errorf("failed to find loopback: %w", err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return nil, fmt.Errorf("failed to bring loopback up: %w", err)
	}
	// Ten thousand idle connections in one listener's queue at once, and ports enough for short ones.
	for name, value := range map[string]string{
		"core/somaxconn": "16384", "ipv4/ip_local_port_range": "2000 40000", "ipv4/tcp_tw_reuse": "1",
		"ipv4/tcp_max_syn_backlog":     "16384",
		"ipv4/ip_local_reserved_ports": "7171,9090,42113",
	} {
		if err := os.WriteFile("/proc/sys/net/"+name, []byte(value), 0); err != nil {
			return nil, fmt.Errorf("failed to set sysctl %s: %w", name, err)
		}
	}
	descriptors()
	b := &bench{Options: o}
	if b.backends, err = startBackends(ctx); err != nil {
		return nil, err
	}
	defer b.backends.stop()
	var rows []Row
	for _, c := range cases {
		if len(o.Cases) > 0 && !slices.Contains(o.Cases, c.name) {
			continue
		}
		got, err := b.run(ctx, c)
		if err != nil {
			return nil, err
		}
		rows = append(rows, got...)
	}
	return rows, nil
}

func (b *bench) run(ctx context.Context, c benchCase) ([]Row, error) {
	collected := map[string][]sample{}
	for round := range b.Runs {
		samples := map[string]sample{}
		for i := range c.only {
			name := c.only[(i+round)%len(c.only)] // each candidate has each place in turn
			s, err := b.one(ctx, c, name)
			if errors.Is(err, errLeftOut) {
				fmt.Fprintf(b.Log, "%s: %s is left out: %v\n", c.name, name, err)
				continue
			}
			if err != nil {
				return nil, fmt.Errorf("failed to measure %s of %s: %w", c.name, name, err)
			}
			samples[name] = s
		}
		if c.settle != nil {
			c.settle(samples)
		}
		for name, s := range samples {
			collected[name] = append(collected[name], s)
			fmt.Fprintf(b.Log, "%s round %d %s %v\n", c.name, round+1, name, s)
		}
	}
	return summarize(c, collected), nil
}

func (b *bench) one(ctx context.Context, c benchCase, name string) (sample, error) {
	candidate, err := startCandidate(ctx, b.Proxy, name)
	if err != nil {
		return nil, err
	}
	defer candidate.stop()
	return c.measure(ctx, b, candidate)
}

func subtractDirect(round map[string]sample) {
	base, ok := round[direct]
	if !ok {
		return
	}
	for name, s := range round {
		if name != direct {
			s["added_p50_us"] = s["p50_us"] - base["p50_us"]
			s["added_p99_us"] = s["p99_us"] - base["p99_us"]
		}
	}
}

func summarize(c benchCase, collected map[string][]sample) []Row {
	var rows []Row
	for name, samples := range collected {
		for metric, unit := range c.units {
			var values []float64
			for _, s := range samples {
				if v, ok := s[metric]; ok {
					values = append(values, v)
				}
			}
			if len(values) == 0 {
				continue
			}
			slices.Sort(values)
			rows = append(rows, Row{
				Case: c.name, Candidate: name, Metric: metric, Unit: unit, Runs: len(values),
				Median: median(values), Min: values[0], Max: values[len(values)-1],
			})
		}
	}
	slices.SortFunc(rows, func(a, b Row) int {
		return strings.Compare(a.Metric+" "+a.Candidate, b.Metric+" "+b.Candidate)
	})
	return rows
}

func median(sorted []float64) float64 {
	middle := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[middle]
	}
	return (sorted[middle-1] + sorted[middle]) / 2
}
