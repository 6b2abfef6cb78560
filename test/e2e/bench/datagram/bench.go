// Package datagram measures stack-proxy's UDP routes against nginx's stream module, interleaved in one run on one
// machine: compare the ratios, not the figures.
//
// A client, the proxy and a server each have a network namespace, in a row. All candidates do the same work:
// they pass the datagrams untouched.
package datagram

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sort"

	"github.com/tinkerbell/stack/test/e2e/bench/report"
)

// Options of a run.
type Options struct {
	Proxy string // the stack-proxy executable
	Nginx string // the nginx executable with its stream module; none leaves nginx out
	Runs  int    // rounds, each of which measures every candidate once
	Cases []string
	Log   io.Writer
}

// Row is a result, in the form of the relay's bench.
type Row = report.Row

// direct is the candidate without a proxy: the middle namespace routes.
const direct = "direct"

// sample is what one measurement of a candidate says.
type sample map[string]float64

// benchCase is one kind of traffic.
type benchCase struct {
	name    string
	units   map[string]string // by metric
	measure func(ctx context.Context, n *network, target string, p *process) (sample, error)
	// settle turns a round's samples into what is reported, where they depend on each other.
	settle func(round map[string]sample)
	// only names the candidates that take part; none is all.
	only []string
}

var cases = []benchCase{
	{
		name:    "syslog",
		units:   map[string]string{"datagrams_per_cpu_s": "1/s", "loss_pct": "%"},
		measure: measureSyslog,
		only:    []string{"ours", "ours-rewrite", "nginx-chart", "nginx-tuned"},
	},
	{
		name:    "tftp-512",
		units:   map[string]string{"added_us_per_block": "us", "us_per_block": "us", "cpu_us_per_block": "us"},
		measure: measureBlocks,
		settle:  subtractDirect,
		only:    []string{"ours", "nginx-chart", "nginx-tuned", direct},
	},
	{
		name:    "tftp-1000-loss1",
		units:   map[string]string{"completed_pct": "%", "seconds": "s"},
		measure: measureRack,
		only:    []string{"ours", "nginx-chart", "nginx-tuned", direct},
	},
}

// CaseNames lists the cases.
func CaseNames() []string {
	names := make([]string, len(cases))
	for i, c := range cases {
		names[i] = c.name
	}
	return names
}

// Run measures and returns the rows.
func Run(ctx context.Context, o Options) ([]Row, error) {
	n, err := newNetwork()
	if err != nil {
		return nil, err
	}
	defer n.close()
	var rows []Row
	for _, c := range cases {
		if len(o.Cases) > 0 && !slices.Contains(o.Cases, c.name) {
			continue
		}
		collected := make(map[string][]sample)
		for round := range o.Runs {
			samples := make(map[string]sample)
			for _, name := range rotated(c.only, round) {
				s, err := measure(ctx, n, o, c, name)
				if errors.Is(err, errLeftOut) {
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
				fmt.Fprintf(o.Log, "%s round %d %s %v\n", c.name, round+1, name, s)
			}
		}
		rows = append(rows, summarize(c, collected)...)
	}
	return rows, nil
}

// rotated gives each candidate each place in turn.
func rotated(names []string, by int) []string {
	by %= len(names)
	return append(slices.Clone(names[by:]), names[:by]...)
}

func measure(ctx context.Context, n *network, o Options, c benchCase, name string) (sample, error) {
	if name == direct {
		return c.measure(ctx, n, serverIP, nil)
	}
	p, err := startCandidate(ctx, n, o, name)
	if err != nil {
		return nil, err
	}
	defer p.stop()
	return c.measure(ctx, n, proxyIP, p)
}

func subtractDirect(round map[string]sample) {
	base := round[direct]["us_per_block"]
	for name, s := range round {
		if name != direct {
			s["added_us_per_block"] = s["us_per_block"] - base
		}
	}
}

func summarize(c benchCase, collected map[string][]sample) []Row {
	var rows []Row
	for _, name := range c.only {
		byMetric := make(map[string][]float64)
		for _, s := range collected[name] {
			for metric, v := range s {
				byMetric[metric] = append(byMetric[metric], v)
			}
		}
		metrics := make([]string, 0, len(byMetric))
		for m := range byMetric {
			metrics = append(metrics, m)
		}
		sort.Strings(metrics)
		for _, m := range metrics {
			v := byMetric[m]
			sort.Float64s(v)
			rows = append(rows, Row{
				Case: c.name, Candidate: name, Metric: m, Unit: c.units[m],
				Median: median(v), Min: v[0], Max: v[len(v)-1], Runs: len(v),
			})
		}
	}
	return rows
}

// median of sorted values.
func median(v []float64) float64 {
	if n := len(v); n%2 == 0 {
		return (v[n/2-1] + v[n/2]) / 2
	}
	return v[len(v)/2]
}
