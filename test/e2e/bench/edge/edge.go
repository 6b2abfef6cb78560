// Package edge measures the serving of files, TLS and the check of tokens, against nginx, interleaved in one run on
// one machine: compare the ratios, not the figures.
//
// Client and candidate share the loopback of a network namespace of their own. The candidate's processor time is read
// from /proc, so what the client costs does not count; the client throws away what it gets (MSG_TRUNC), also under
// TLS, so that its copying and decrypting does not fill the machine.
package edge

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/tinkerbell/stack/test/e2e/bench/report"
	"github.com/tinkerbell/stack/test/e2e/bench/rounds"
)

// Options of a run.
type Options struct {
	Proxy    string        // the stack-proxy executable
	Tokens   string        // the test program of pkg/edge/jwt (go test -c); empty leaves the tokens out
	Runs     int           // rounds, each of which measures every candidate once
	Duration time.Duration // of one measurement
	Cases    []string      // empty is all
	Log      io.Writer
}

// The candidates.
const (
	ours      = "ours"
	oursChart = "ours-chart" // with the chart's limit of memory, in a cgroup
	nginx     = "nginx"
	nginxNow  = "nginx-1.26" // with the kernel's TLS where this machine has it, see [peers.KernelTLS]
	// alone is the verifying of a signature by crypto/ecdsa and nothing else: a check cannot cost less.
	alone = "signature-alone"
)

// bench is what all measurements share.
type bench struct {
	Options
	site *site
}

func (b *bench) cases() []rounds.Case {
	all := []string{ours, oursChart, nginx, nginxNow}
	return []rounds.Case{
		{
			Name:       "file-bulk",
			Units:      map[string]string{"cpu_s_per_gib": "s/GiB", "gbit_per_s": "Gbit/s"},
			Candidates: all,
			Measure:    b.serving(b.bulk),
		},
		{
			Name:       "file-100",
			Units:      map[string]string{"jain": "1", "slowest_over_median": "1", "cpu_s_per_gib": "s/GiB"},
			Candidates: all,
			Measure:    b.serving(b.rack),
		},
		{
			Name:       "share-100",
			Units:      map[string]string{"jain": "1", "rate_over_wish": "1", "cpu_s_per_gib": "s/GiB"},
			Candidates: all,
			Measure:    b.serving(b.share),
		},
		{
			Name:       "tls-file",
			Units:      map[string]string{"cpu_s_per_gib": "s/GiB", "gbit_per_s": "Gbit/s"},
			Candidates: all,
			Measure:    b.serving(b.bulkTLS),
		},
		{
			Name:       "tls-handshake",
			Units:      map[string]string{"per_cpu_s": "1/s", "rsa_per_cpu_s": "1/s"},
			Candidates: all,
			Measure:    b.serving(b.handshakes),
		},
		{
			Name:       "jwt",
			Units:      map[string]string{"us_per_check": "us", "allocs_per_check": "1"},
			Candidates: []string{ours, alone},
			Measure:    b.tokens,
		},
	}
}

// CaseNames lists the cases.
func CaseNames() []string { return rounds.Names(new(bench).cases()) }

// Run measures and returns the rows. The process must be in a network namespace of its own ([network.Enter]).
func Run(ctx context.Context, o Options) ([]report.Row, error) {
	for name, value := range map[string]string{ // ports enough for short connections
		"ipv4/ip_local_port_range": "10000 60000", "ipv4/tcp_tw_reuse": "1", "core/somaxconn": "4096",
	} {
		if err := os.WriteFile("/proc/sys/net/"+name, []byte(value), 0); err != nil {
			return nil, fmt.Errorf("failed to set sysctl %s: %w", name, err)
		}
	}
	var err error
	b := &bench{Options: o}
	if b.site, err = newSite(); err != nil {
		return nil, err
	}
	defer b.site.remove()
	return rounds.Run(ctx, b.cases(), rounds.Options{Runs: o.Runs, Cases: o.Cases, Log: o.Log})
}
