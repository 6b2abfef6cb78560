// Package proxy measures stack-proxy's TCP and HTTP routes against nginx and HAProxy, interleaved in one run on one
// machine: compare the ratios, not the figures.
//
// Client, candidate and backend share the loopback of a network namespace of their own. The candidate's processor
// time is read from /proc, so what the client and the backend cost does not count.
package proxy

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/tinkerbell/stack/test/e2e/bench/hear"
	"github.com/tinkerbell/stack/test/e2e/bench/report"
	"github.com/tinkerbell/stack/test/e2e/bench/rounds"
)

// Options of a run.
type Options struct {
	Proxy    string        // the stack-proxy executable
	Runs     int           // rounds, each of which measures every candidate once
	Duration time.Duration // of one measurement
	Cases    []string      // empty is all
	Boots    bool          // compare stack-proxy with itself, telling of boots and not
	Log      io.Writer
}

// bench is what all measurements share.
type bench struct {
	Options
	backends *backends
	socket   string // of boots
}

// measurement is of one candidate, which runs.
type measurement func(ctx context.Context, b *bench, c *candidate) (rounds.Sample, error)

var httpCandidates = []string{ours, oursChart, nginxChart, nginxTuned, nginxNow, haproxy, haproxyNow}

func (b *bench) cases() []rounds.Case {
	return []rounds.Case{
		{
			Name:       "tcp-bulk",
			Units:      map[string]string{"cpu_s_per_gib": "s/GiB", "gbit_per_s": "Gbit/s"},
			Candidates: []string{ours, oursChart, nginxTuned, nginxNow, haproxy, haproxyNow},
			Measure:    b.of(measureBulk),
		},
		{
			Name:       "tcp-connect",
			Units:      map[string]string{"conns_per_s": "1/s", "cpu_us_per_conn": "us"},
			Candidates: []string{ours, oursChart, nginxTuned, nginxNow, haproxy, haproxyNow, direct},
			Measure:    b.of(measureConnect),
		},
		{
			Name:       "http-small",
			Units:      map[string]string{"req_per_s": "1/s", "req_per_cpu_s": "1/s"},
			Candidates: []string{ours, oursChart, nginxChart, nginxTuned, nginxNow, haproxy, haproxyNow, direct},
			Measure:    b.of(measureSmall),
		},
		{
			Name: "http-5000",
			Units: map[string]string{
				"p50_us": "us", "p99_us": "us", "added_p50_us": "us", "added_p99_us": "us", "cpu_pct": "%",
			},
			Candidates: []string{ours, oursChart, nginxChart, nginxTuned, nginxNow, haproxy, haproxyNow, direct},
			Measure:    b.of(measureRate),
			Settle:     subtractDirect,
		},
		b.visits("http-once", asking(visit{requests: gets(1)}), httpCandidates...),
		b.visits("http-three", asking(visit{requests: gets(3)}), httpCandidates...),
		b.visits("http10-kept", asking(visit{requests: repeat(get10, 500)}), httpCandidates...),
		b.visits("post-once", asking(visit{requests: []string{post}}), httpCandidates...),
		b.visits("file-once", asking(visit{requests: []string{getFile}, files: true}),
			ours, oursChart, nginxChart, nginxTuned, nginxNow),
		b.visits("clients-100", machines(100), ours, nginxChart, nginxTuned, nginxNow, haproxy, haproxyNow),
		b.visits("clients-1000", machines(1000), ours, nginxChart, nginxTuned, nginxNow, haproxy, haproxyNow),
		{
			Name: "out-of-turn",
			Units: map[string]string{
				"foreign_answers": "1", "own_earlier_answers": "1", "failed_requests": "1", "requests": "1",
				"second_answers": "1", "backend_connections": "1",
			},
			Candidates: []string{ours, nginxChart, nginxTuned, nginxNow, haproxy, haproxyNow},
			Measure:    b.measureOutOfTurn,
		},
		{
			Name:       "idle-10000",
			Units:      map[string]string{"kib_per_conn": "KiB", "kernel_kib_per_conn": "KiB", "connections": "1"},
			Candidates: []string{ours, nginxTuned, nginxNow, haproxy, haproxyNow},
			Measure:    b.of(measureIdle),
		},
	}
}

// visits is a case of short connections.
func (b *bench) visits(name string, next func(i int) visit, candidates ...string) rounds.Case {
	return rounds.Case{
		Name:       name,
		Units:      map[string]string{"cpu_us_per_request": "us", "req_per_s": "1/s", "conns_per_s": "1/s"},
		Candidates: candidates,
		Measure: b.of(func(ctx context.Context, b *bench, c *candidate) (rounds.Sample, error) {
			return measureVisits(ctx, b, c, next)
		}),
	}
}

// of measures a candidate that is started for it.
func (b *bench) of(measure measurement) func(context.Context, string) (rounds.Sample, error) {
	return func(ctx context.Context, name string) (rounds.Sample, error) {
		c, err := startCandidate(ctx, b, name, httpBackend)
		if err != nil {
			return nil, err
		}
		defer c.stop()
		return measure(ctx, b, c)
	}
}

// CaseNames lists the cases.
func CaseNames() []string { return rounds.Names(new(bench).cases()) }

// Run measures and returns the rows. The process must be in a network namespace of its own ([network.Enter]).
func Run(ctx context.Context, o Options) ([]report.Row, error) {
	// Ten thousand idle connections in one listener's queue at once, and ports enough for short ones.
	for name, value := range map[string]string{
		"core/somaxconn": "16384", "ipv4/ip_local_port_range": "2000 40000", "ipv4/tcp_tw_reuse": "1",
		"ipv4/tcp_max_syn_backlog":     "16384",
		"ipv4/ip_local_reserved_ports": "7171,8080,9090,42113",
	} {
		if err := os.WriteFile("/proc/sys/net/"+name, []byte(value), 0); err != nil {
			return nil, fmt.Errorf("failed to set sysctl %s: %w", name, err)
		}
	}
	descriptors()
	var err error
	b := &bench{Options: o}
	if b.backends, err = startBackends(ctx); err != nil {
		return nil, err
	}
	defer b.backends.stop()
	cases := b.cases()
	if o.Boots {
		socket, stop, err := hear.Boots()
		if err != nil {
			return nil, err
		}
		b.socket = socket
		defer func() { fmt.Fprintln(o.Log, stop()) }()
		cases = withBoots(cases)
	}
	return rounds.Run(ctx, cases, rounds.Options{Runs: o.Runs, Cases: o.Cases, Log: o.Log})
}

// withBoots are the cases that go through stack-proxy, with and without boots.
func withBoots(cases []rounds.Case) []rounds.Case {
	var all []rounds.Case
	for _, c := range cases {
		if c.Name != "out-of-turn" && c.Name != "idle-10000" {
			c.Candidates, c.Settle = []string{ours, oursBoots}, nil
			all = append(all, c)
		}
	}
	return all
}

func subtractDirect(round map[string]rounds.Sample) {
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
