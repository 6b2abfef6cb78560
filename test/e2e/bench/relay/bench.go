// Package relay measures dhcp-relay against ISC dhcrelay, dnsmasq and dhcp-helper: the same DISCOVERs through each of
// them, in turns, in one run.
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
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/tinkerbell/stack/test/e2e/bench/report"
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
	// Boots compares dhcp-relay with itself: telling stack-proxy what it hears of boots, and not.
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

// Names of the candidates.
const (
	Ours         = "ours"
	OursSegments = "ours-segments" // with SEGMENTS=true; the echo server reads a UDP socket
	OursBoots    = "ours-boots"    // with BOOTS_SOCKET, of which this process reads
	ISC          = "isc-dhcrelay"
	Dnsmasq      = "dnsmasq"
	DHCPHelper   = "dhcp-helper"
)

// Candidates are the programs; what is measured has ours twice, in the order of the report.
var (
	Candidates = []string{Ours, ISC, Dnsmasq, DHCPHelper}
	measured   = []string{Ours, OursSegments, ISC, Dnsmasq, DHCPHelper}
	compared   = []string{Ours, OursBoots}
	// Candidates6 are those that relay DHCPv6.
	Candidates6 = []string{Ours, ISC, Dnsmasq}
)

// candidates are what is measured in a case.
func (c Case) candidates() []string {
	if c.IPv6 {
		return Candidates6
	}
	return measured
}

// command starts a candidate for a case.
func (c Case) command(candidate string, o Options, found map[string]string) *exec.Cmd {
	if c.IPv6 {
		return command6(candidate, o, found)
	}
	return command(candidate, o, found, c.Rate == 0)
}

// server is the address of the server that the case's candidates ask.
func (c Case) server() string {
	if c.IPv6 {
		return serverIP6
	}
	return serverIP
}

// command starts a candidate.
func command(candidate string, o Options, found map[string]string, saturate bool) *exec.Cmd {
	switch candidate {
	case Ours, OursSegments, OursBoots:
		c := exec.Command(o.Relay)
		c.Env = []string{
			"DHCP_RELAY_LISTENERS=" + lanLink, "DHCP_RELAY_SERVERS=" + serverIP, "DHCP_RELAY_LOG_LEVEL=warn",
			"DHCP_RELAY_ADMIN_ADDRESS=127.0.0.1:9067",
		}
		switch candidate {
		case OursSegments:
			c.Env = append(c.Env, "DHCP_RELAY_SEGMENTS=true")
		case OursBoots:
			c.Env = append(c.Env, "DHCP_RELAY_BOOTS_SOCKET="+o.socket)
		}
		if saturate { // the others have no limit either
			c.Env = append(c.Env, "DHCP_RELAY_TOTAL_RATE=-1", "DHCP_RELAY_NEWCOMER_RATE=-1")
		}
		return c
	case ISC: // as the incumbent's chart starts it
		return exec.Command(found["dhcrelay"], "-d", "-q", "-4", "-m", "forward", "-c", "10",
			"-id", lanLink, "-iu", upLink, "-U", upLink, serverIP)
	case Dnsmasq:
		return exec.Command(found["dnsmasq"], "--no-daemon", "--conf-file=/dev/null", "--port=0",
			"--log-facility=/dev/null", "--user=root", "--dhcp-relay="+relayLAN+","+serverIP+","+upLink)
	case DHCPHelper:
		return exec.Command(found["dhcp-helper"], "-n", "-u", "root", "-s", serverIP, "-i", lanLink)
	}
	return nil
}

// available are the candidates that can be run.
func available(candidates []string, found map[string]string) []string {
	return slices.DeleteFunc(slices.Clone(candidates), func(c string) bool {
		program := map[string]string{ISC: "dhcrelay", Dnsmasq: "dnsmasq", DHCPHelper: "dhcp-helper"}[c]
		return program != "" && found[program] == ""
	})
}

// sample is one measurement.
type sample map[string]float64

// units of the metrics.
var units = []struct{ metric, unit string }{
	{"answered_pct", "%"}, {"cpu_us_per_packet", "us"}, {"p50_us", "us"}, {"p99_us", "us"}, {"rss_mib", "MiB"},
	{"packets_per_cpu_s", "1/s"},
}

// Run measures every case with every candidate, in turns.
func Run(ctx context.Context, o Options) ([]Row, error) {
	found, missing := map[string]string{}, []error(nil)
	if !o.Boots {
		found, missing = findPeers(o.Directory)
	}
	for _, err := range missing {
		fmt.Fprintln(o.Log, err)
	}
	if o.Boots {
		stop, err := o.hearBoots()
		if err != nil {
			return nil, err
		}
		defer stop()
	}
	var rows []Row
	for _, c := range Cases {
		if len(o.Cases) > 0 && !slices.Contains(o.Cases, c.Name) {
			continue
		}
		candidates := available(c.candidates(), found)
		if o.Boots {
			if candidates = compared; c.IPv6 {
				continue
			}
		}
		samples := map[string][]sample{}
		for run := range o.Runs {
			for i := range candidates {
				candidate := candidates[(i+run)%len(candidates)] // each has each place in turn
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
	var echoed, log, generated bytes.Buffer
	echo := exec.Command(self, "echo", c.server())
	echo.Stdout, echo.Stderr = &echoed, os.Stderr
	if c.Rate > 0 {
		realtime(echo)
		realtime(relay)
	}
	if err := start(s.server, echo); err != nil {
		return nil, fmt.Errorf("failed to start echo server: %w", err)
	}
	defer end(echo, syscall.SIGKILL)
	relay.Stdout, relay.Stderr = &log, &log
	if err := start(s.relay, relay); err != nil {
		return nil, fmt.Errorf("failed to start relay: %w", err)
	}
	defer end(relay, syscall.SIGKILL)
	warm, err := warmUp(ctx, s, self, c)
	if err != nil {
		return nil, fmt.Errorf("%w\n%s", err, log.String())
	}
	before, err := cpuTime(relay.Process.Pid)
	if err != nil {
		return nil, fmt.Errorf("the relay ended: %w\n%s", err, log.String())
	}
	load, err := generate(ctx, s, self, c, duration, 1<<20, &generated)
	if err != nil {
		return nil, err
	}
	after, err := cpuTime(relay.Process.Pid)
	if err != nil {
		return nil, fmt.Errorf("the relay ended: %w\n%s", err, log.String())
	}
	rss, err := peakRSS(relay.Process.Pid)
	if err != nil {
		return nil, err
	}
	end(echo, syscall.SIGTERM)
	received, err := strconv.Atoi(strings.TrimSpace(echoed.String()))
	if err != nil {
		return nil, fmt.Errorf("failed to read the echo server's count: %w", err)
	}
	// Requests that reached the server and answers that reached the machines: what the relay has relayed.
	packets := float64(received-warm) + float64(load.Answered)
	cpu := float64(after - before)
	return sample{
		"answered_pct":      100 * float64(load.Answered) / float64(load.Sent),
		"cpu_us_per_packet": cpu / 1e3 / packets,
		"p50_us":            load.P50,
		"p99_us":            load.P99,
		"rss_mib":           rss,
		"packets_per_cpu_s": packets / cpu * 1e9,
	}, nil
}

// realtime has a program scheduled before everything else, so that the figures of a paced load tell of the candidates
// and not of what else the machine does. It applies to all candidates, the generator and the server alike.
func realtime(c *exec.Cmd) {
	chrt, err := exec.LookPath("chrt")
	if err != nil {
		return // part of util-linux, which Debian always has
	}
	c.Args = append([]string{chrt, "--rr", "10", c.Path}, c.Args[1:]...)
	c.Path = chrt
}

// warmUp waits until the relay does its job, and warms both sides up: neighbours, caches, the heap. It returns how many
// requests reached the server.
func warmUp(ctx context.Context, s *site, self string, c Case) (requests int, err error) {
	for range 10 {
		result, err := generate(ctx, s, self, Case{Rate: 200, IPv6: c.IPv6}, 300*time.Millisecond, 0, io.Discard)
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

func generate(
	ctx context.Context, s *site, self string, load Case, duration time.Duration, first uint32, keep io.Writer,
) (Result, error) {
	var out, faults bytes.Buffer
	c := exec.CommandContext(ctx, self, "generate", lanLink, strconv.Itoa(load.Rate), duration.String(),
		strconv.FormatUint(uint64(first), 10), strconv.FormatBool(load.IPv6))
	c.Stdout, c.Stderr = io.MultiWriter(&out, keep), &faults
	if load.Rate > 0 {
		realtime(c)
	}
	if err := in(s.machines, c.Run); err != nil {
		return Result{}, fmt.Errorf("failed to generate load: %w: %s", err, faults.String())
	}
	var r Result
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		return Result{}, fmt.Errorf("failed to read the generator's result: %w", err)
	}
	return r, nil
}

// end stops a process and waits for it; a second call does nothing.
func end(c *exec.Cmd, signal syscall.Signal) {
	if err := c.Process.Signal(signal); errors.Is(err, os.ErrProcessDone) {
		return
	}
	_ = c.Wait()
}

// cpuTime is the time in nanoseconds that a process's threads have run, user and system, as the scheduler counts it.
func cpuTime(pid int) (total int64, err error) {
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	if err != nil || len(tasks) == 0 {
		return 0, fmt.Errorf("no process %d", pid)
	}
	for _, path := range tasks {
		b, err := os.ReadFile(path)
		if err != nil {
			return 0, err
		}
		fields := strings.Fields(string(b))
		if len(fields) < 1 {
			return 0, fmt.Errorf("unexpected %s: %q", path, b)
		}
		ns, err := strconv.ParseInt(fields[0], 10, 64)
		if err != nil {
			return 0, err
		}
		total += ns
	}
	return total, nil
}

// peakRSS is the most memory in MiB that a process has had resident.
func peakRSS(pid int) (float64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if value, found := strings.CutPrefix(line, "VmHWM:"); found {
			kib, err := strconv.ParseFloat(strings.Fields(value)[0], 64)
			return kib / 1024, err
		}
	}
	return 0, fmt.Errorf("no VmHWM of process %d", pid)
}
