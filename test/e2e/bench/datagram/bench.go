// Package datagram measures stack-proxy's UDP routes against nginx's stream module, interleaved in one run on one
// machine: compare the ratios, not the figures.
//
// A client, the proxy and a server each have a network namespace, in a row. All candidates do the same work:
// they pass the datagrams untouched.
package datagram

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/tinkerbell/stack/test/e2e/bench/report"
	"github.com/tinkerbell/stack/test/e2e/bench/rounds"
	"github.com/tinkerbell/stack/test/e2e/process"
)

// Options of a run.
type Options struct {
	Proxy string // the stack-proxy executable
	Nginx string // the nginx executable with its stream module; none leaves nginx out
	Runs  int    // rounds, each of which measures every candidate once
	Cases []string
	Log   io.Writer
}

// direct is the candidate without a proxy: the middle namespace routes.
const direct = "direct"

// oursFile is stack-proxy with the file as a boot file, so that the server is not asked.
const oursFile = "ours-file"

// The TFTP servers that are measured beside it.
const (
	dnsmasq    = "dnsmasq"
	dnsmasqNow = "dnsmasq-2.91"
	tftpd      = "tftpd-hpa"
)

// measurement is of one candidate, which runs; or of none, for direct.
type measurement func(ctx context.Context, n *site, target string, p *process.Process) (rounds.Sample, error)

func (o Options) cases(n *site) []rounds.Case {
	return []rounds.Case{
		{
			Name:       "syslog",
			Units:      map[string]string{"datagrams_per_cpu_s": "1/s", "loss_pct": "%"},
			Candidates: []string{"ours", "ours-chart", "nginx-chart", "nginx-tuned"},
			Measure:    o.of(n, measureSyslog),
		},
		{
			Name:       "tftp-512",
			Units:      map[string]string{"added_us_per_block": "us", "us_per_block": "us", "cpu_us_per_block": "us"},
			Candidates: []string{"ours", "ours-chart", "nginx-chart", "nginx-tuned", direct},
			Measure:    o.of(n, measureBlocks),
			Settle:     subtractDirect,
		},
		{
			Name:       "tftp-100-loaders",
			Units:      map[string]string{"cpu_us_per_block": "us", "seconds": "s"},
			Candidates: []string{"ours", "ours-chart", oursFile, "nginx-chart", "nginx-tuned", direct},
			Measure:    o.of(n, loadersOf(1)),
		},
		{
			Name:       "tftp-100-windows",
			Units:      map[string]string{"cpu_us_per_block": "us", "seconds": "s"},
			Candidates: []string{"ours", oursFile},
			Measure:    o.of(n, loadersOf(4)),
		},
		o.files(n, 1), o.files(n, 4), o.files(n, 64),
		{
			Name:       "tftp-1000-loss1",
			Units:      map[string]string{"completed_pct": "%", "seconds": "s"},
			Candidates: []string{"ours", "ours-chart", "nginx-chart", "nginx-tuned", direct},
			Measure:    o.of(n, measureRack),
		},
	}
}

// of measures a candidate that is started for it.
func (o Options) of(n *site, measure measurement) func(context.Context, string) (rounds.Sample, error) {
	return func(ctx context.Context, name string) (rounds.Sample, error) {
		if name == direct {
			return measure(ctx, n, serverIP, nil)
		}
		dir, err := os.MkdirTemp("", "bench-datagram-")
		if err != nil {
			return nil, err
		}
		defer func() { _ = os.RemoveAll(dir) }()
		c := &candidate{dir: dir}
		defer c.stop()
		if err := c.start(ctx, n, o, name); err != nil {
			return nil, err
		}
		return measure(ctx, n, proxyIP, c.Process)
	}
}

// files is a rack that loads a file which stack-proxy has in memory, beside TFTP servers that read it from a directory.
func (o Options) files(n *site, window int) rounds.Case {
	return rounds.Case{
		Name:       fmt.Sprintf("tftp-100-files-%d", window),
		Units:      map[string]string{"cpu_us_per_block": "us", "seconds": "s", "window": "1"},
		Candidates: []string{oursFile, dnsmasq, dnsmasqNow, tftpd},
		Measure:    o.of(n, loadersOf(window)),
	}
}

// CaseNames lists the cases.
func CaseNames() []string { return rounds.Names(Options{}.cases(nil)) }

// Run measures and returns the rows.
func Run(ctx context.Context, o Options) ([]report.Row, error) {
	n, err := newSite()
	if err != nil {
		return nil, err
	}
	defer n.close()
	return rounds.Run(ctx, o.cases(n), rounds.Options{Runs: o.Runs, Cases: o.Cases, Log: o.Log})
}

func subtractDirect(round map[string]rounds.Sample) {
	base := round[direct]["us_per_block"]
	for name, s := range round {
		if name != direct {
			s["added_us_per_block"] = s["us_per_block"] - base
		}
	}
}
