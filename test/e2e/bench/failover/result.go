package failover

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tinkerbell/stack/test/e2e/arp"
	"github.com/tinkerbell/stack/test/e2e/bench/report"
)

// Try is a case that has happened once.
type Try struct {
	Case string    `json:"case"`
	At   time.Time `json:"at"`
	// Owner had the address before, and Next had it afterwards.
	Owner string `json:"owner"`
	Next  string `json:"next"`
	Seen
	// Probes are those of the sampler, NoOwner and TwoOwners those that no or more than one station answered, and Moves
	// are how often the one that answered was another one than before.
	Probes    int `json:"arp_probes"`
	NoOwner   int `json:"arp_no_owner"`
	TwoOwners int `json:"arp_two_owners"`
	Moves     int `json:"moves"`
}

// Part is one run of the bench.
type Part struct {
	Candidate string    `json:"candidate"`
	Began     time.Time `json:"began"`
	Ended     time.Time `json:"ended"`
	Nodes     int       `json:"nodes"`
	// Load is the machine's load average of a minute, each half minute.
	Load  []float64 `json:"load"`
	Tries []Try     `json:"tries"`
	// Sampler is all that the sampler has seen in the run, also between the tries.
	Sampler arp.Log `json:"sampler"`
}

// Result is what all parts have found.
type Result struct {
	Rows  []report.Row `json:"rows"`
	Parts []Part       `json:"parts"`
}

// Add puts a part into the result of a file, which it makes.
func Add(path string, part Part) (*Result, error) {
	var all Result
	switch text, err := os.ReadFile(path); {
	case errors.Is(err, os.ErrNotExist):
	case err != nil:
		return nil, fmt.Errorf("failed to read result: %w", err)
	default:
		if err := json.Unmarshal(text, &all); err != nil {
			return nil, fmt.Errorf("failed to read result of %s: %w", path, err)
		}
	}
	all.Parts = append(all.Parts, part)
	all.Rows = all.rows()
	text, err := json.MarshalIndent(all, "", " ")
	if err != nil {
		return nil, fmt.Errorf("failed to encode result: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("failed to make directory for result: %w", err)
	}
	if err := os.WriteFile(path, append(text, '\n'), 0o644); err != nil {
		return nil, fmt.Errorf("failed to write result: %w", err)
	}
	return &all, nil
}

// metrics are the figures of a try.
var metrics = []struct {
	name, unit string
	of         func(Try) float64
}{
	{"echo-outage", "s", func(t Try) float64 { return t.Echo }},
	{"http-outage", "s", func(t Try) float64 { return t.HTTP }},
	{"connects-lost", "connects", func(t Try) float64 { return float64(t.Lost) }},
	{"requests-broken", "requests", func(t Try) float64 { return float64(t.Broken) }},
	{"connections", "connects", func(t Try) float64 { return float64(t.Connections) }},
	{"moves", "moves", func(t Try) float64 { return float64(t.Moves) }},
	{"two-owners", "probes", func(t Try) float64 { return float64(t.TwoOwners) }},
	{"arp-probes", "probes", func(t Try) float64 { return float64(t.Probes) }},
}

// rows are the figures of each case and candidate over all parts, in the order in which they came.
func (r *Result) rows() (rows []report.Row) {
	type group struct{ name, candidate string }
	var order []group
	tries := map[group][]Try{}
	for _, part := range r.Parts {
		for _, try := range part.Tries {
			g := group{try.Case, part.Candidate}
			if tries[g] == nil {
				order = append(order, g)
			}
			tries[g] = append(tries[g], try)
		}
	}
	for _, g := range order {
		for _, metric := range metrics {
			var values []float64
			for _, try := range tries[g] {
				values = append(values, metric.of(try))
			}
			slices.Sort(values)
			rows = append(rows, report.Row{
				Case: g.name, Candidate: g.candidate, Metric: metric.name, Unit: metric.unit,
				Median: values[len(values)/2], Min: values[0], Max: values[len(values)-1], Runs: len(values),
			})
		}
	}
	return rows
}

// Text is the result for people: a row for each case and candidate, with median, least and most.
func (r *Result) Text() string {
	var text strings.Builder
	shown := []string{"echo-outage", "http-outage", "connects-lost", "requests-broken", "two-owners", "arp-probes"}
	fmt.Fprintf(&text, "%-15s %-15s %5s", "case", "candidate", "runs")
	for _, metric := range shown {
		fmt.Fprintf(&text, "  %-22s", metric)
	}
	last := ""
	for _, row := range r.Rows {
		if !slices.Contains(shown, row.Metric) {
			continue
		}
		if name := row.Case + " " + row.Candidate; name != last {
			last = name
			fmt.Fprintf(&text, "\n%-15s %-15s %5d", row.Case, row.Candidate, row.Runs)
		}
		fmt.Fprintf(&text, "  %-22s", fmt.Sprintf("%.3g (%.3g to %.3g)", row.Median, row.Min, row.Max))
	}
	probes, two := 0, 0
	for _, part := range r.Parts {
		probes, two = probes+part.Sampler.Probes, two+part.Sampler.TwoOwners
	}
	fmt.Fprintf(&text, "\nARP probes of all runs: %d, with two answers: %d\n", probes, two)
	return text.String()
}

// load is the machine's load average of a minute.
func load() float64 {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return 0
	}
	first, _, _ := strings.Cut(string(text), " ")
	value, _ := strconv.ParseFloat(first, 64) // the kernel wrote it
	return value
}
