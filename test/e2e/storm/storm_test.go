package storm

import (
	"errors"
	"math"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/tinkerbell/stack/test/e2e/bench/report"
	"github.com/tinkerbell/stack/test/e2e/bench/rounds"
	"github.com/tinkerbell/stack/test/e2e/lab"
	"github.com/tinkerbell/stack/test/e2e/storm/machines"
)

func TestMain(m *testing.M) {
	lab.Init()
	os.Exit(m.Run())
}

// TestStorm has ten machines boot at once through our pod with the chart's limits of memory, also while two of a thousand
// packets are lost, and ten through the former chart's where nginx is installed.
func TestStorm(t *testing.T) {
	if err := lab.Preflight(); errors.Is(err, lab.ErrUnsupported) {
		t.Skip(err)
	}
	if testing.Short() {
		t.Skip("takes some seconds")
	}
	for name, o := range map[string]Options{
		"ours":           {Candidate: Ours, Machines: 10, Initramfs: 1 << 20},
		"ours with loss": {Candidate: Ours, Machines: 10, Initramfs: 1 << 20, Loss: 0.2},
		"former":         {Candidate: Former, Machines: 10, Initramfs: 1 << 20},
	} {
		t.Run(name, func(t *testing.T) {
			for _, program := range []string{"nginx", "dhcrelay"} {
				if _, err := exec.LookPath(program); err != nil && o.Candidate == Former {
					t.Skip(err)
				}
			}
			o.Dir, o.Logf = t.TempDir(), t.Logf
			if _, err := os.Stat("/sys/fs/cgroup/memory"); err != nil {
				if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err != nil {
					o.Unlimited = true
				}
			}
			s, err := Open(t.Context(), o)
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := s.Close(); err != nil {
					t.Error(err)
				}
			}()
			passed := map[string]int{}
			result, err := s.Storm(t.Context(), func(l machines.Line) {
				if l.Passed != nil {
					passed[l.Passed.Step]++
				}
			})
			if err != nil {
				t.Fatal(err)
			}
			want := map[string]int{}
			for _, step := range machines.Steps() {
				want[step] = o.Machines
			}
			if diff := cmp.Diff(want, passed); diff != "" {
				t.Errorf("machines that passed each step (-want +got):\n%s\n%v", diff, result.Failures())
			}
			sample := result.Sample()
			if sample["finished"] != 100 || sample["wrong_answers"] != 0 {
				t.Errorf("got %v; wrong: %q", sample, result.Wrong())
			}
			for _, metric := range []string{"cpu_proxy", "rss_proxy", "rss_relay", "share_machines", "seconds_99"} {
				if !(sample[metric] > 0) {
					t.Errorf("%s is %v", metric, sample[metric])
				}
			}
			if o.Loss > 0 {
				if lost, err := s.Lab.Lost(); lost == 0 {
					t.Errorf("of some 14,000 packets none was lost: %v", err)
				}
			}
		})
	}
}

func TestUntil(t *testing.T) {
	times := []float64{1, 2, 3, 4, 5, 6, 7, 8, 9}
	for _, test := range []struct {
		all     int
		percent float64
		want    float64
		ok      bool
	}{
		{10, 50, 5, true}, {10, 90, 9, true}, {10, 91, 0, false}, {10, 100, 0, false},
		{9, 50, 5, true}, {9, 99, 9, true}, {9, 1, 1, true}, {0, 99, 0, false},
	} {
		got, ok := until(times, test.all, test.percent)
		if got != test.want || ok != test.ok {
			t.Errorf("%v %% of %d: got %v %v, want %v %v", test.percent, test.all, got, ok, test.want, test.ok)
		}
	}
}

func TestSample(t *testing.T) {
	r := Result{
		Seconds: 10 / cores(), MachinesCPU: 2, Used: Usage{Proxy: 3, Relay: 1, Backends: 2, Computer: 9},
		PeakProxy: 40, PeakRelay: 15,
		Machines: []machines.Outcome{
			{Finished: true, Seconds: 4, Retries: map[string]int{"tftp": 2}},
			{Finished: true, Seconds: 2, Retries: map[string]int{"tftp": 1, "stream": 1}, Wrong: []string{"metadata: another's"}},
			{Machine: 2, Failure: "tftp: nothing has moved for 1m30s; last: m00003 heard nothing"},
		},
	}
	want := rounds.Sample{
		"finished": 200.0 / 3, "seconds_50": 4, "seconds_99_of_finished": 4, "wrong_answers": 1,
		"cpu_proxy": 1.5, "cpu_relay": 0.5, "cpu_pod": 2, "rss_proxy": 40, "rss_relay": 15, "rss_pod": 55,
		"share_pod": 40, "share_machines": 20, "share_backends": 20, "share_other": 10,
	}
	for _, step := range retried() {
		want["retries_"+step] = 0
	}
	want["retries_tftp"], want["retries_stream"] = 3, 1
	if diff := cmp.Diff(want, r.Sample(), cmpopts.EquateApprox(0, 1e-9)); diff != "" {
		t.Errorf("sample (-want +got):\n%s", diff)
	}
	for metric := range r.Sample() {
		if _, ok := Units()[metric]; !ok {
			t.Errorf("%s is in no row", metric)
		}
	}
	if diff := cmp.Diff(map[string]int{"tftp: nothing has moved for 1m30s": 1}, r.Failures()); diff != "" {
		t.Errorf("failures (-want +got):\n%s", diff)
	}
}

func TestBusy(t *testing.T) {
	got, err := busy("cpu  100 20 30 5000 600 7 8 9 0 0")
	if err != nil || math.Abs(got-1.74) > 1e-9 {
		t.Errorf("got %v, %v", got, err)
	}
	for _, line := range []string{"", "cpu 1 2", "cpu0 1 2 3 4 5 6 7 8", "cpu a 2 3 4 5 6 7 8"} {
		if _, err := busy(line); err == nil {
			t.Errorf("%q is taken", line)
		}
	}
}

func TestHeapAlloc(t *testing.T) {
	const profile = "heap profile: 1: 2 [3: 4] @ heap/1048576\n\n# runtime.MemStats\n# Alloc = 1\n# HeapAlloc = 7340032\n# HeapSys = 9\n"
	if got, err := heapAlloc(profile); got != 7<<20 || err != nil {
		t.Errorf("got %v, %v", got, err)
	}
	if _, err := heapAlloc("404 page not found\n"); err == nil {
		t.Error("no profile has a heap")
	}
}

func TestMembers(t *testing.T) {
	seen := map[string]bool{}
	for _, m := range makeMembers(1000) {
		if !Segment.Contains(m.IP) {
			t.Errorf("%s is not in %s", m.IP, Segment)
		}
		for _, own := range []string{m.Name, m.MAC, m.IP.String(), m.Workflow} {
			if seen[own] {
				t.Errorf("%s is of two machines", own)
			}
			seen[own] = true
		}
	}
}

func TestTable(t *testing.T) {
	var b strings.Builder
	Table(&b, []report.Row{
		{Case: "storm-100", Candidate: Ours, Metric: "finished", Median: 100},
		{Case: "storm-100", Candidate: Former, Metric: "finished", Median: 51.2},
		{Case: "storm-100", Candidate: Ours, Metric: "seconds_99", Median: 12.345},
	})
	const want = `       case      metric   ours  former
  storm-100    finished    100    51.2
  storm-100  seconds_99  12.35        
`
	if diff := cmp.Diff(want, b.String()); diff != "" {
		t.Errorf("table (-want +got):\n%s", diff)
	}
}

func TestBoard(t *testing.T) {
	b := NewBoard(4)
	for i, seconds := range []float64{0.5, 0.7, 2.5} {
		b.Add(machines.Line{Passed: &machines.Passed{Machine: i, Step: machines.StepDiscover, Seconds: seconds}})
	}
	b.Add(machines.Line{Outcome: &machines.Outcome{Machine: 3, Failure: "discover", Wrong: []string{"address"}}})
	var text strings.Builder
	if lines := b.Render(&text); lines != len(machines.Steps())+2 || lines != strings.Count(text.String(), "\n") {
		t.Errorf("%d lines", lines)
	}
	for _, want := range []string{
		"discover   " + strings.Repeat("█", 30) + strings.Repeat("·", 10) + "    3/4       0.5 s    0.7 s    2.5 s\n",
		"tftp       " + strings.Repeat("·", 40) + "    0/4   \n",
		"1 failed, 1 wrong answers\n",
	} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("no %q in\n%s", want, text.String())
		}
	}
}
