package report

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/tinkerbell/stack/pkg/boot/journal"
)

var noon = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)

const mac = "52:54:00:5e:00:01"

func step(at time.Time, result journal.Result, text string) journal.Change {
	return journal.Change{
		Kind: journal.StepEnded, At: at, Machine: journal.MachineView{MAC: mac, Address: netip.MustParseAddr("192.0.2.101"), Name: text},
		Step: journal.StepView{Step: journal.Script, Result: result, Begin: noon, End: noon.Add(1500 * time.Millisecond), From: text, Text: text},
	}
}

// lines are the log's, without their time.
func lines(t *testing.T, log *bytes.Buffer) (all []map[string]any) {
	t.Helper()
	for line := range strings.Lines(log.String()) {
		var m map[string]any
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		delete(m, "time")
		all = append(all, m)
	}
	return all
}

func TestChanges(t *testing.T) {
	var log bytes.Buffer
	registry := prometheus.NewPedanticRegistry()
	r := New(Options{
		Logger: slog.New(slog.NewJSONHandler(&log, nil)), Registry: registry,
		Counts: func() []journal.Count {
			return []journal.Count{{State: journal.Stuck, Step: journal.Script, Machines: 2}, {State: journal.Booting, Step: journal.DHCP, Machines: 3}}
		},
	})
	machine := journal.MachineView{MAC: mac}
	cause := &journal.Cause{Name: "not-found", Text: "It is not there.", Remedy: "Put it there."}
	for _, c := range []journal.Change{
		step(noon, journal.OK, "m1"),
		{Kind: journal.CauseChanged, At: noon, Machine: machine, Boot: journal.BootView{State: journal.Stuck, At: journal.Script, Cause: cause}},
		{Kind: journal.StateChanged, At: noon, Machine: machine, Boot: journal.BootView{State: journal.Stuck, At: journal.Script, Cause: cause}},
		{Kind: journal.CauseChanged, At: noon, Machine: machine, Boot: journal.BootView{State: journal.Booting}},
		{Kind: journal.BootEnded, At: noon, Machine: machine, Boot: journal.BootView{State: journal.Booted, At: journal.Files, Begin: noon, End: noon.Add(time.Minute)}},
	} {
		r.Changed(c)
	}
	want := []map[string]any{
		{"level": "INFO", "msg": "boot step", "mac": mac, "address": "192.0.2.101", "name": "m1", "step": "script", "result": "ok", "seconds": 1.5, "from": "m1", "text": "m1"},
		{"level": "WARN", "msg": "machine is stuck", "mac": mac, "step": "script", "cause": "not-found", "text": "It is not there.", "remedy": "Put it there."},
		{"level": "INFO", "msg": "boot ended", "mac": mac, "step": "files", "state": "booted", "seconds": 60.0},
	}
	if diff := cmp.Diff(want, lines(t, &log)); diff != "" {
		t.Error(diff)
	}
	if err := testutil.GatherAndCompare(registry, strings.NewReader(`
# HELP stack_boot_boots_total Boots that ended, by the state at their end.
# TYPE stack_boot_boots_total counter
stack_boot_boots_total{state="booted"} 1
stack_boot_boots_total{state="failed"} 0
stack_boot_boots_total{state="installed"} 0
stack_boot_boots_total{state="quiet"} 0
stack_boot_boots_total{state="stuck"} 0
# HELP stack_boot_machines Machines that are known, by state and the step that they are at.
# TYPE stack_boot_machines gauge
stack_boot_machines{state="booting",step="dhcp"} 3
stack_boot_machines{state="stuck",step="script"} 2
# HELP stack_boot_steps_total Steps of boots that ended, by result: ok, failed.
# TYPE stack_boot_steps_total counter
stack_boot_steps_total{result="ok",step="script"} 1
# HELP stack_boot_stuck_total Times that a machine was found to be stuck, by step and cause.
# TYPE stack_boot_stuck_total counter
stack_boot_stuck_total{cause="not-found",step="script"} 1
`), "stack_boot_boots_total", "stack_boot_machines", "stack_boot_steps_total", "stack_boot_stuck_total"); err != nil {
		t.Error(err)
	}
	if n := testutil.CollectAndCount(r.seconds); n != 1 {
		t.Errorf("%d histograms", n)
	}
}

// A cause with which a machine goes on, such as a slow transfer, is told as none that it is stuck by.
func TestMildCauseIsNotStuck(t *testing.T) {
	for state, want := range map[journal.State]int{
		journal.Booting: 0, journal.Booted: 0, journal.Quiet: 0, journal.Stuck: 1, journal.StateFailed: 1,
	} {
		var log bytes.Buffer
		r := New(Options{Logger: slog.New(slog.NewJSONHandler(&log, nil))})
		r.Changed(journal.Change{Kind: journal.CauseChanged, At: noon, Machine: journal.MachineView{MAC: mac}, Boot: journal.BootView{
			State: state, At: journal.Kernel, Cause: &journal.Cause{Name: "slow"},
		}})
		if lines, counted := len(lines(t, &log)), testutil.CollectAndCount(r.stuck); lines != want || counted != want {
			t.Errorf("%s: %d lines, %d metrics, want %d", state, lines, counted, want)
		}
	}
}

// A rack that boots again and again does not fill the disk with lines; how many are missing is told and counted.
func TestLinesAreBounded(t *testing.T) {
	var log bytes.Buffer
	r := New(Options{Logger: slog.New(slog.NewJSONHandler(&log, nil))})
	for range 5000 {
		r.Changed(step(noon, journal.OK, ""))
	}
	if n := len(lines(t, &log)); n != linesAtOnce {
		t.Errorf("%d lines", n)
	}
	log.Reset()
	r.Changed(step(noon.Add(time.Second), journal.OK, ""))
	all := lines(t, &log)
	if len(all) != 2 || all[0]["msg"] != "boot lines were left out" || all[0]["lines"] != float64(5000-linesAtOnce) {
		t.Errorf("%v", all)
	}
	if got := testutil.ToFloat64(r.unlogged); got != 5000-linesAtOnce {
		t.Errorf("%v were counted", got)
	}
	if got := testutil.ToFloat64(r.steps.WithLabelValues("script", "ok")); got != 5001 {
		t.Errorf("%v steps were counted", got)
	}
}

// In a storm the line about those that are missing comes once a minute, and none is left untold.
func TestMissingLinesAreToldOnceAMinute(t *testing.T) {
	var log bytes.Buffer
	r := New(Options{Logger: slog.New(slog.NewJSONHandler(&log, nil))})
	at, changes := noon, 0
	for ; at.Before(noon.Add(5 * time.Minute)); at = at.Add(5 * time.Millisecond) {
		r.Changed(step(at, journal.OK, ""))
		changes++
	}
	r.Changed(step(at.Add(time.Minute), journal.OK, ""))
	told, missing := 0, 0.0
	all := lines(t, &log)
	for _, line := range all {
		if line["msg"] == "boot lines were left out" {
			told++
			missing += line["lines"].(float64)
		}
	}
	if told > 6 || len(all)-told+int(missing) != changes+1 {
		t.Errorf("told %d times; %d lines and %v missing, of %d", told, len(all)-told, missing, changes+1)
	}
}

// Whatever a machine says: one line, no escapes, valid, short.
func TestHostileTexts(t *testing.T) {
	for i, text := range []string{
		"<script>alert(1)</script>", "\x1b[2J\x1b]0;owned\a", "a\nb\r\nc\x00", "\xff\xfe\xfd", strings.Repeat("ä", 32<<10),
		"\u202etxt.exe", strings.Repeat("\xf0\x9f\x92", 3000), `" level=ERROR msg="all is lost`,
	} {
		for name, handler := range map[string]func(*bytes.Buffer) slog.Handler{
			"json": func(b *bytes.Buffer) slog.Handler { return slog.NewJSONHandler(b, nil) },
			"text": func(b *bytes.Buffer) slog.Handler { return slog.NewTextHandler(b, nil) },
		} {
			t.Run(fmt.Sprint(name, i), func(t *testing.T) {
				var log bytes.Buffer
				New(Options{Logger: slog.New(handler(&log))}).Changed(step(noon, journal.Failed, text))
				line := strings.TrimSuffix(log.String(), "\n")
				if len(line) > 4*textRoom+500 || !utf8.ValidString(line) || strings.ContainsAny(line, "\x1b\n\r\x00\a\u202e") {
					t.Errorf("%d bytes: %q", len(line), line)
				}
			})
		}
	}
}
