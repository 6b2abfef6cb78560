// Package relay measures dhcp-relay against ISC dhcrelay, dnsmasq and dhcp-helper: the same DISCOVERs through each of
// them, interleaved, in one run.
//
//	generator (process) ─ lan0 ─ relay under test ─ eth0 ─ echo server (process)
//
// All three sit in network namespaces of their own on one machine, so absolute figures mean little elsewhere; what
// counts is how the candidates compare.
package relay

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tinkerbell/stack/test/e2e/bench/hear"
	"github.com/tinkerbell/stack/test/e2e/bench/report"
	"github.com/tinkerbell/stack/test/e2e/process"

	"github.com/tinkerbell/stack/test/e2e/network"
)

// Options are what [Run] needs.
type Options struct {
	// Relay is the path of dhcp-relay.
	Relay string
	// Directory takes the peers' packages.
	Directory string
	// Runs is how often each case is measured with each candidate.
	Runs int
	// Duration is the time of one measurement.
	Duration time.Duration
	// Cases are the names of the cases to run; none means all.
	Cases []string
	// Candidates are the names of those to measure; none means all.
	Candidates []string
	// Builds are paths of other builds of dhcp-relay by their names, to be measured beside Relay.
	Builds map[string]string
	// Boots compares dhcp-relay with itself: telling stack-boots what it hears of boots, and not.
	Boots bool
	// Log is told what happens.
	Log io.Writer

	socket string // of boots
}

// Row is one figure of the report.
type Row = report.Row

// Case is a load. Rate 0 saturates.
type Case struct {
	Name string
	Rate int
	IPv6 bool // SOLICITs
}

// Cases are all the loads.
var Cases = []Case{
	{Name: "discover-500", Rate: 500},
	{Name: "discover-2000", Rate: 2000},
	{Name: "discover-10000", Rate: 10000},
	{Name: "discover-20000", Rate: 20000},
	{Name: "saturation"},
	{Name: "solicit-500", Rate: 500, IPv6: true},
	{Name: "solicit-2000", Rate: 2000, IPv6: true},
	{Name: "solicit-20000", Rate: 20000, IPv6: true},
}

// sample is one measurement.
type sample map[string]float64

// units of the metrics.
var units = []struct{ metric, unit string }{
	{"answered_pct", "%"}, {"cpu_us_per_packet", "us"}, {"p50_us", "us"}, {"p99_us", "us"}, {"rss_mib", "MiB"},
	{"packets_per_cpu_s", "1/s"},
}

// Run measures every case with every candidate, interleaved.
func Run(ctx context.Context, o Options) ([]Row, error) {
	found, missing := map[string]string{}, []error(nil)
	if !o.Boots {
		found, missing = findPeers(o.Directory)
	}
	for _, err := range missing {
		fmt.Fprintln(o.Log, err)
	}
	if o.Boots {
		socket, stop, err := hear.Boots()
		if err != nil {
			return nil, err
		}
		o.socket = socket
		defer func() { fmt.Fprintln(o.Log, stop()) }()
	}
	var rows []Row
	for _, c := range Cases {
		if len(o.Cases) > 0 && !slices.Contains(o.Cases, c.Name) {
			continue
		}
		candidates := o.candidates(c, found)
		if len(candidates) == 0 {
			continue
		}
		samples := map[string][]sample{}
		for run := range o.Runs {
			for i := range candidates {
				candidate := candidates[(i+run)%len(candidates)] // each has each place once
				if err := ctx.Err(); err != nil {
					return rows, err
				}
				s, err := measure(ctx, c.command(candidate, o, found), c, o.Duration)
				if err != nil {
					return rows, fmt.Errorf("failed to measure %s with %s: %w", c.Name, candidate, err)
				}
				const line = "%-16s run %d  %-13s %6.1f%% answered  %6.2f us/packet  p50 %5.0f us  p99 %6.0f us  %4.1f MiB\n"
				fmt.Fprintf(o.Log, line, c.Name, run+1, candidate,
					s["answered_pct"], s["cpu_us_per_packet"], s["p50_us"], s["p99_us"], s["rss_mib"])
				samples[candidate] = append(samples[candidate], s)
			}
		}
		rows = append(rows, summarise(c.Name, candidates, samples)...)
	}
	return rows, nil
}

func summarise(name string, candidates []string, samples map[string][]sample) (rows []Row) {
	for _, candidate := range candidates {
		if len(samples[candidate]) == 0 {
			continue
		}
		for _, u := range units {
			var values []float64
			for _, s := range samples[candidate] {
				values = append(values, s[u.metric])
			}
			slices.Sort(values)
			rows = append(rows, Row{
				Case: name, Candidate: candidate, Metric: u.metric, Unit: u.unit,
				Median: median(values), Min: values[0], Max: values[len(values)-1], Runs: len(values),
			})
		}
	}
	return rows
}

// median of sorted values.
func median(values []float64) float64 {
	n := len(values)
	return (values[(n-1)/2] + values[n/2]) / 2
}

// Commands of "bench relay", which is run again by them: the load generator, and the server.
const (
	GenerateCommand = "generate"
	EchoCommand     = "echo"
)

// measure runs one load through one candidate, on a site of its own.
func measure(ctx context.Context, relay *exec.Cmd, c Case, duration time.Duration) (sample, error) {
	s, err := newSite()
	if err != nil {
		return nil, err
	}
	defer func() { _ = s.close() }()
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	echo := exec.Command(self, "relay", EchoCommand, c.server())
	echoed := new(bytes.Buffer)
	echo.Stdout = echoed
	server, err := process.Start(ctx, echo, process.Options{
		Name: "echo server", Enter: network.Into(s.server), Realtime: c.Rate > 0,
	})
	if err != nil {
		return nil, err
	}
	defer server.Kill()
	p, err := process.Start(ctx, relay, process.Options{Enter: network.Into(s.relay), Realtime: c.Rate > 0})
	if err != nil {
		return nil, err
	}
	defer p.Kill()
	warm, err := warmUp(ctx, s, self, c)
	if err != nil {
		return nil, fmt.Errorf("%w\n%s", err, p.Said())
	}
	before := p.CPU()
	load, err := generate(ctx, s, self, c, duration, 1<<20)
	if err != nil {
		return nil, err
	}
	cpu := p.CPU() - before
	peak, err := p.Peak()
	if err != nil {
		return nil, fmt.Errorf("the relay ended: %w\n%s", err, p.Said())
	}
	if err := server.End(10 * time.Second); err != nil {
		return nil, fmt.Errorf("%w\n%s", err, server.Said())
	}
	received, err := strconv.Atoi(strings.TrimSpace(echoed.String()))
	if err != nil {
		return nil, fmt.Errorf("failed to read the echo server's count: %w", err)
	}
	// Requests that reached the server and answers that reached the machines: what the relay has relayed.
	packets := float64(received-warm) + float64(load.Answered)
	return sample{
		"answered_pct":      100 * float64(load.Answered) / float64(load.Sent),
		"cpu_us_per_packet": cpu * 1e6 / packets,
		"p50_us":            load.P50,
		"p99_us":            load.P99,
		"rss_mib":           peak / 1024,
		"packets_per_cpu_s": packets / cpu,
	}, nil
}

// warmUp waits until the relay does its job, and warms both sides up: neighbours, caches, the heap. It returns how many
// requests reached the server.
func warmUp(ctx context.Context, s *site, self string, c Case) (requests int, err error) {
	for range 10 {
		result, err := generate(ctx, s, self, Case{Rate: 200, IPv6: c.IPv6}, 300*time.Millisecond, 0)
		if err != nil {
			return 0, err
		}
		requests += result.Answered
		if result.Answered == result.Sent {
			return requests, nil
		}
	}
	return 0, errors.New("failed to get the warm-up answered within 10 tries")
}

// generate runs a load on the LAN. Its first transaction is numbered.
func generate(
	ctx context.Context, s *site, self string, load Case, duration time.Duration, first uint32,
) (Result, error) {
	var out bytes.Buffer
	c := exec.CommandContext(ctx, self, "relay", GenerateCommand, lanLink, strconv.Itoa(load.Rate), duration.String(),
		strconv.FormatUint(uint64(first), 10), strconv.FormatBool(load.IPv6))
	c.Stdout = &out
	p, err := process.Start(ctx, c, process.Options{
		Name: "generator", Enter: network.Into(s.machines), Realtime: load.Rate > 0,
	})
	if err != nil {
		return Result{}, err
	}
	if err := p.Wait(); err != nil {
		return Result{}, fmt.Errorf("failed to generate load: %w: %s", err, p.Said())
	}
	var r Result
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		return Result{}, fmt.Errorf("failed to read the generator's result: %w", err)
	}
	return r, nil
}
