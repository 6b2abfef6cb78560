package storm

import (
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/tinkerbell/stack/test/e2e/bench/rounds"
	"github.com/tinkerbell/stack/test/e2e/storm/machines"
)

// Result is what a storm was like.
type Result struct {
	Machines []machines.Outcome
	Seconds  float64 // the machines' whole program, start and end included
	Used     Usage
	// MachinesCPU is processor time of the machines themselves, in seconds.
	MachinesCPU float64
	// PeakProxy and PeakRelay are what the candidate's processes had in memory at most, in MiB: workers included, and of
	// what processes share the part of each.
	PeakProxy, PeakRelay float64

	ended bool
}

// Finished is how many machines came to the end.
func (r *Result) Finished() int { return len(r.times()) }

// Wrong lists wrong answers.
func (r *Result) Wrong() []string {
	var all []string
	for _, m := range r.Machines {
		all = append(all, m.Wrong...)
	}
	return all
}

// Failures counts machines by the step in which they failed and why, without what the last attempt said of each.
func (r *Result) Failures() map[string]int {
	all := map[string]int{}
	for _, m := range r.Machines {
		if !m.Finished {
			why, _, _ := strings.Cut(m.Failure, "; last")
			all[why]++
		}
	}
	return all
}

// times are those at which machines finished, sorted.
func (r *Result) times() []float64 {
	var times []float64
	for _, m := range r.Machines {
		if m.Finished {
			times = append(times, m.Seconds)
		}
	}
	slices.Sort(times)
	return times
}

// until is when so many of 100 machines had finished; sorted are the times of those that did. It is not ok where fewer
// did.
func until(sorted []float64, all int, percent float64) (seconds float64, ok bool) {
	need := int(math.Ceil(float64(all) * percent / 100))
	if need < 1 || need > len(sorted) {
		return 0, false
	}
	return sorted[need-1], true
}

// Units of the metrics of a storm.
func Units() map[string]string {
	units := map[string]string{
		"finished": "%", "seconds_50": "s", "seconds_99": "s", "seconds_100": "s", "seconds_99_of_finished": "s",
		"cpu_proxy": "s/boot", "cpu_relay": "s/boot", "cpu_pod": "s/boot",
		"rss_proxy": "MiB", "rss_relay": "MiB", "rss_pod": "MiB", "wrong_answers": "",
		"share_pod": "%", "share_machines": "%", "share_backends": "%", "share_other": "%",
	}
	for _, step := range retried() {
		units["retries_"+step] = ""
	}
	return units
}

// retried are the steps whose retries are counted.
func retried() []string { return append(machines.Steps(), "stream") }

// Sample makes the metrics of a storm. What no machine came to has none.
func (r *Result) Sample() rounds.Sample {
	times := r.times()
	all := len(r.Machines)
	s := rounds.Sample{
		"finished":      100 * float64(len(times)) / float64(all),
		"wrong_answers": float64(len(r.Wrong())),
		"rss_proxy":     r.PeakProxy, "rss_relay": r.PeakRelay, "rss_pod": r.PeakProxy + r.PeakRelay,
	}
	for name, percent := range map[string]float64{"seconds_50": 50, "seconds_99": 99, "seconds_100": 100} {
		if seconds, ok := until(times, all, percent); ok {
			s[name] = seconds
		}
	}
	if seconds, ok := until(times, len(times), 99); ok {
		s["seconds_99_of_finished"] = seconds
		boots := float64(len(times))
		s["cpu_proxy"], s["cpu_relay"] = r.Used.Proxy/boots, r.Used.Relay/boots
		s["cpu_pod"] = s["cpu_proxy"] + s["cpu_relay"]
	}
	whole := r.Seconds * cores() / 100
	pod := r.Used.Proxy + r.Used.Relay
	s["share_pod"], s["share_machines"], s["share_backends"] = pod/whole, r.MachinesCPU/whole, r.Used.Backends/whole
	s["share_other"] = (r.Used.Computer - pod - r.MachinesCPU - r.Used.Backends) / whole
	retries := map[string]int{}
	for _, m := range r.Machines {
		for step, n := range m.Retries {
			retries[step] += n
		}
	}
	for step := range maps.Keys(retries) {
		s["retries_"+step] = float64(retries[step])
	}
	for _, step := range retried() {
		s["retries_"+step] += 0
	}
	return s
}
