package storm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/tinkerbell/stack/test/e2e/bench/report"
	"github.com/tinkerbell/stack/test/e2e/bench/rounds"
	"github.com/tinkerbell/stack/test/e2e/lab"
)

// Bench is storms of several sizes, with each candidate, interleaved.
type Bench struct {
	Options
	Candidates []string
	Machines   []int
	Losses     []float64 // of 100 packets
	Large      bool      // 20 machines with an initramfs of 100 MiB, too
	Runs       int
	Profile    string // directory for processor profiles of our programs; empty: none are made
	Log        io.Writer
	// Within is after how long nothing more is begun: the next run goes on, by what is in the file Samples. 0 measures
	// all anew.
	Within  time.Duration
	Samples string

	parts *parts
}

// Run measures and returns the rows.
func (b *Bench) Run(ctx context.Context) ([]report.Row, error) {
	if b.Within == 0 {
		b.Within = math.MaxInt64
		if err := os.Remove(b.Samples); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("failed to remove earlier samples: %w", err)
		}
	}
	var err error
	if b.parts, err = openParts(b.Samples, b.Within); err != nil {
		return nil, err
	}
	var cases []rounds.Case
	for _, n := range b.Machines {
		for _, loss := range b.Losses {
			name := fmt.Sprintf("storm-%d", n)
			if loss > 0 {
				name += "-loss" + strconv.FormatFloat(loss, 'f', -1, 64)
			}
			o := b.Options
			o.Machines, o.Loss = n, loss
			cases = append(cases, b.newCase(name, o))
		}
	}
	if b.Large {
		o := b.Options
		o.Machines, o.Initramfs = 20, 100<<20
		cases = append(cases, b.newCase("storm-20-100mib", o))
	}
	rows, err := rounds.Run(ctx, cases, rounds.Options{Runs: b.Runs, Log: b.Log})
	if err == nil && b.parts.left > 0 {
		fmt.Fprintf(b.Log, "%d measurements are left: run the same again\n", b.parts.left)
	}
	return rows, err
}

func (b *Bench) newCase(name string, o Options) rounds.Case {
	return rounds.Case{
		Name: name, Units: Units(), Candidates: b.Candidates,
		Measure: func(ctx context.Context, candidate string) (rounds.Sample, error) {
			o := o
			o.Candidate = candidate
			return b.parts.next(name, candidate, func() (rounds.Sample, error) { return b.measure(ctx, name, o) })
		},
	}
}

// measure brings a lab up for one storm.
func (b *Bench) measure(ctx context.Context, name string, o Options) (sample rounds.Sample, err error) {
	profile := b.Profile != "" && o.Candidate == Ours
	s, err := Open(ctx, o)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	stop := func() error { return nil }
	if profile {
		stop = s.profile(ctx, filepath.Join(b.Profile, name))
	}
	result, err := s.Storm(ctx, nil)
	if err = errors.Join(err, stop()); err != nil {
		return nil, err
	}
	failures := result.Failures()
	for _, failure := range slices.Sorted(maps.Keys(failures)) {
		fmt.Fprintf(b.Log, "%s %s: %d machines failed: %s\n", name, o.Candidate, failures[failure], failure)
	}
	for _, wrong := range result.Wrong() {
		fmt.Fprintf(b.Log, "%s %s: wrong answer: %s\n", name, o.Candidate, wrong)
	}
	return result.Sample(), nil
}

// profile has our programs profile their use of the processor from now on; stop waits for the profiles.
func (s *Site) profile(ctx context.Context, prefix string) (stop func() error) {
	programs := map[string]uint16{
		lab.StackProxy: lab.ProxyAdminPort, lab.DHCPRelay: lab.RelayAdminPort, lab.StackBoots: lab.BootsAdminPort,
	}
	done := make(chan error, len(programs))
	for program, port := range programs {
		go func() { done <- s.profileOne(ctx, prefix+"-"+program+".pprof", port) }()
	}
	return func() (err error) {
		for range programs {
			err = errors.Join(err, <-done)
		}
		return err
	}
}

// profileSeconds is how much of a storm a profile is of.
const profileSeconds = 20

func (s *Site) profileOne(ctx context.Context, path string, port uint16) error {
	url := fmt.Sprintf("http://%s/debug/pprof/profile?seconds=%d", netip.AddrPortFrom(loopback, port), profileSeconds)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return err
	}
	client := s.Lab.Client(lab.RolePod)
	client.Timeout = 2 * profileSeconds * time.Second
	response, err := client.Do(request)
	if err != nil {
		return fmt.Errorf("failed to profile: %w", err)
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("failed to profile: %s: %.100s", response.Status, text)
	}
	return errors.Join(err, os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, text, 0o644))
}

// Table writes medians, a row for each case and metric, a column for each candidate.
func Table(w io.Writer, rows []report.Row) {
	var candidates []string
	for _, r := range rows {
		if !slices.Contains(candidates, r.Candidate) {
			candidates = append(candidates, r.Candidate)
		}
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(table, "case\tmetric\t")
	for _, c := range candidates {
		fmt.Fprintf(table, "%s\t", c)
	}
	fmt.Fprintln(table)
	type key struct{ name, metric string }
	var keys []key
	values := map[key]map[string]float64{}
	for _, r := range rows {
		k := key{r.Case, r.Metric}
		if values[k] == nil {
			keys, values[k] = append(keys, k), map[string]float64{}
		}
		values[k][r.Candidate] = r.Median
	}
	for _, k := range keys {
		fmt.Fprintf(table, "%s\t%s\t", k.name, k.metric)
		for _, c := range candidates {
			if v, ok := values[k][c]; ok {
				fmt.Fprintf(table, "%.4g\t", v)
			} else {
				fmt.Fprint(table, "\t")
			}
		}
		fmt.Fprintln(table)
	}
	_ = table.Flush() // a terminal that is gone shows nothing
}
