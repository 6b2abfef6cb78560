package failover

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tinkerbell/stack/test/e2e/arp"
	"github.com/tinkerbell/stack/test/e2e/bench/report"
	"github.com/tinkerbell/stack/test/e2e/program"
)

// Try is a case that has happened once.
type Try struct {
	Case string    `json:"case"`
	At   time.Time `json:"at"`
	// Owner had the address before, and Next had it afterwards.
	Owner string `json:"owner"`
	Next  string `json:"next"`
	Seen
	Wire
	// MiB is the most memory that a balancer which runs has had resident since it began.
	MiB float64 `json:"memory_mib"`
	// Cost is what it cost, where nothing happened.
	Cost *Cost `json:"cost,omitempty"`
}

// Wire is what the sampler saw, of all addresses.
type Wire struct {
	// Probes are those of the sampler, NoOwner and TwoOwners those that no or more than one station answered, and Moves
	// are how often the one that answered was another one than before.
	Probes    int `json:"arp_probes"`
	NoOwner   int `json:"arp_no_owner"`
	TwoOwners int `json:"arp_two_owners"`
	Moves     int `json:"moves"`
	// Stale are announcements by a station that did not have the address.
	Stale int `json:"stale_announcements"`
	// Silence is the longest time in which nobody answered for an address, in seconds.
	Silence float64 `json:"silence_s"`
}

// wireOf sums up the logs of all addresses.
func wireOf(logs []arp.Log) (w Wire) {
	for _, log := range logs {
		w.Probes += log.Probes
		w.NoOwner += log.NoOwner
		w.TwoOwners += log.TwoOwners
		w.Moves += log.Moves
		w.Stale += log.Stale
		silence := log.Silence()
		if len(log.Spans) > 1 && log.Spans[0].Owners == "" { // it went before the first probe
			silence = max(silence, log.Spans[1].At.Sub(log.Spans[0].At))
		}
		if last := len(log.Spans) - 1; last >= 0 && log.Spans[last].Owners == "" {
			silence = max(silence, time.Duration(log.Spans[last].Probes)*arp.Interval(len(logs))) // it goes on
		}
		w.Silence = max(w.Silence, silence.Seconds())
	}
	return w
}

// answered is the part of the probes that somebody answered, in percent.
func (w Wire) answered() float64 {
	if w.Probes == 0 {
		return 0
	}
	return 100 * float64(w.Probes-w.NoOwner) / float64(w.Probes)
}

// Part is one run of the bench.
type Part struct {
	Candidate string    `json:"candidate"`
	Began     time.Time `json:"began"`
	Ended     time.Time `json:"ended"`
	Nodes     int       `json:"nodes"`
	Addresses int       `json:"addresses"`
	// Load is the machine's load average of a minute, each half minute.
	Load  []float64 `json:"load"`
	Tries []Try     `json:"tries"`
	// Sampler is all that the sampler has seen in the run, also between the tries.
	Sampler Wire `json:"sampler"`
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
	return &all, program.WriteJSON(path, all)
}

// metrics are the figures of a try. Those that are short stand in the table for people.
var metrics = []struct {
	name, unit, short string
	of                func(Try) float64
}{
	{"answered", "percent", "answered, %", func(t Try) float64 { return t.answered() }},
	{"silence", "s", "silence, s", func(t Try) float64 { return t.Silence }},
	{"echo-outage", "s", "no echo, s", func(t Try) float64 { return t.Echo }},
	{"http-outage", "s", "no HTTP, s", func(t Try) float64 { return t.HTTP }},
	{"connects-lost", "connects", "lost", func(t Try) float64 { return float64(t.Lost) }},
	{"connections", "connects", "connections", func(t Try) float64 { return float64(t.Connections) }},
	{"requests-broken", "requests", "", func(t Try) float64 { return float64(t.Broken) }},
	{"moves", "moves", "moves", func(t Try) float64 { return float64(t.Moves) }},
	{"two-owners", "probes", "two owners", func(t Try) float64 { return float64(t.TwoOwners) }},
	{"arp-probes", "probes", "probes", func(t Try) float64 { return float64(t.Probes) }},
	{"stale-announcements", "frames", "stale", func(t Try) float64 { return float64(t.Stale) }},
	{"memory", "MiB", "memory, MiB", func(t Try) float64 { return t.MiB }},
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
	fmt.Fprintf(&text, "%-20s %-18s %4s", "case", "candidate", "runs")
	short := map[string]string{}
	for _, metric := range metrics {
		short[metric.name] = metric.short
		if metric.short != "" {
			fmt.Fprintf(&text, "  %-22s", metric.short)
		}
	}
	last := ""
	for _, row := range r.Rows {
		if short[row.Metric] == "" {
			continue
		}
		if name := row.Case + " " + row.Candidate; name != last {
			last = name
			fmt.Fprintf(&text, "\n%-20s %-18s %4d", row.Case, row.Candidate, row.Runs)
		}
		fmt.Fprintf(&text, "  %-22s", fmt.Sprintf("%.4g (%.4g to %.4g)", row.Median, row.Min, row.Max))
	}
	fmt.Fprintln(&text)
	for _, part := range r.Parts {
		fmt.Fprintf(&text, "%s, %d addresses on %d nodes: %d ARP probes, %d with two answers\n",
			part.Candidate, part.Addresses, part.Nodes, part.Sampler.Probes, part.Sampler.TwoOwners)
		for _, try := range part.Tries {
			if try.Cost != nil {
				fmt.Fprintf(&text, "%+v\n", *try.Cost)
			}
		}
	}
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
