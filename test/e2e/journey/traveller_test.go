package journey

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tinkerbell/stack/test/e2e/lab"
	"github.com/tinkerbell/stack/test/e2e/program"
)

// alone is a traveller without a lab.
func alone(firmware string) (*traveller, *[]string) {
	var passed []string
	t := newTraveller(lab.Machine{Name: firmware}, firmware, stages)
	t.passed = func(_ string, step Step) { passed = append(passed, step.Name) }
	t.hint = func(s stage, _ time.Time) string { return "about " + s.name }
	t.start = time.Now()
	return t, &passed
}

func TestTravel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		traveller, passed := alone("bios")
		go func() {
			for i, step := range Steps(false) {
				time.Sleep(time.Second)
				if step == StepSyslog {
					continue // it comes after the next
				}
				traveller.put(mark{step: step, ok: true, detail: "d"})
				traveller.put(mark{step: step, ok: true, detail: "again"})
				if step == StepMetadata {
					traveller.put(mark{step: StepSyslog, ok: true})
				}
				traveller.put(mark{step: "sent"}) // no step
				_ = i
			}
		}()
		result := traveller.travel(t.Context())
		if !result.OK || result.Seconds != float64(len(stages)) || result.Steps[0].Detail != "d" {
			t.Errorf("got %+v", result)
		}
		want := strings.Replace(strings.Join(Steps(false), " "), "syslog metadata", "metadata syslog", 1)
		if diff := cmp.Diff(want, strings.Join(*passed, " ")); diff != "" {
			t.Error(diff)
		}
	})
}

// A kernel that comes slowly is waited for, beyond the time in which nothing may move. One that stalls is given up, and the
// reason says how far it came. Signs are looked at eight times a minute here.
func TestTravelSlowly(t *testing.T) {
	for _, test := range []struct {
		name   string
		pieces int // of 20
		reason string
	}{
		{"slow", 20, ""},
		{"stalls", 14, "no whole kernel came from 8080/tcp of the service IP: " +
			"nothing moved for 1m0s, given up after 12m45s: HTTP /vmlinuz: 14 of 20 bytes; about kernel"},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				traveller, _ := alone("bios")
				var came atomic.Int64
				traveller.signs = func(s stage) []func() string {
					if s.name != StepKernel {
						return nil
					}
					return []func() string{func() string { return fmt.Sprintf("HTTP /vmlinuz: %d of 20 bytes", came.Load()) }}
				}
				go func() {
					for _, step := range Steps(false) {
						for step == StepKernel && came.Load() < 20 {
							time.Sleep(50 * time.Second)
							if came.Load() == int64(test.pieces) {
								return
							}
							came.Add(1)
						}
						traveller.put(mark{step: step, ok: true})
					}
				}()
				result := traveller.travel(t.Context())
				step, reason := result.Failure()
				if result.OK != (test.reason == "") || reason != test.reason || reason != "" && step != StepKernel {
					t.Errorf("got %s: %s", step, reason)
				}
			})
		})
	}
}

func TestTravelFails(t *testing.T) {
	for _, test := range []struct {
		name    string
		happens func(*traveller, context.CancelCauseFunc)
		step    string
		reason  string
		seconds float64
	}{
		{
			"a step is late", func(tr *traveller, _ context.CancelCauseFunc) {
				tr.put(mark{step: StepInterface, ok: true})
				time.Sleep(3 * time.Second)
				tr.put(mark{step: StepDiscover, ok: true})
			}, StepOffer,
			"no OFFER came to the machine: relay or Smee is silent: nothing moved for 10s; about offer", 13,
		},
		{
			"a step fails", func(tr *traveller, _ context.CancelCauseFunc) {
				time.Sleep(time.Second)
				tr.put(mark{step: StepGRPC, detail: "no\n\tworkflow"})
			}, StepGRPC, "no workflow", 1,
		},
		{
			"something ends", func(tr *traveller, _ context.CancelCauseFunc) {
				tr.put(mark{step: StepInterface, ok: true})
				tr.put(mark{step: StepDiscover, ok: true})
				time.Sleep(2 * time.Second)
				tr.put(mark{detail: "smee ended"})
			}, StepOffer, "smee ended", 2,
		},
		{
			"interrupted", func(_ *traveller, cancel context.CancelCauseFunc) {
				time.Sleep(time.Second)
				cancel(errors.New("Ctrl-C"))
			}, StepInterface, "Ctrl-C", 1,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				traveller, _ := alone(firmwareGo)
				go test.happens(traveller, cancel)
				result := traveller.travel(ctx)
				step, reason := result.Failure()
				if result.OK || step != test.step || reason != test.reason || result.Seconds != test.seconds {
					t.Errorf("got %s: %s after %v s, ok %v", step, reason, result.Seconds, result.OK)
				}
			})
		})
	}
}

func TestResult(t *testing.T) {
	good := MachineResult{Name: "uefi", Firmware: "uefi", OK: true, Seconds: 2.5}
	bad := MachineResult{Name: "bios", Firmware: "bios", Seconds: 1}
	for i, name := range Steps(false) {
		good.Steps = append(good.Steps, Step{Name: name, OK: true, Seconds: float64(i)})
		step := Step{Name: name, Detail: notReached}
		switch {
		case i < 3:
			step = Step{Name: name, OK: true}
		case i == 3:
			step = Step{Name: name, Seconds: 1, Detail: "because"}
		}
		bad.Steps = append(bad.Steps, step)
	}
	result := Result{Machines: []MachineResult{bad, good}}
	if got := result.Failure(); got != "bios: ack: because" {
		t.Errorf("got %q", got)
	}
	var table strings.Builder
	if err := result.Table(&table); err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{
		"step       bios          uefi\n", "offer      0.0 s         2.0 s\n", "ack        FAILED 1.0 s  3.0 s\n",
		"tftp       -             4.0 s\n",
	} {
		if !strings.Contains(table.String(), line) {
			t.Errorf("no %q in\n%s", line, table.String())
		}
	}
	six := MachineResult{Name: "uefi-http", Steps: slices.Clone(good.Steps)}
	for i, s := range stagesOf(firmwareHTTP, false, true) {
		six.Steps[i].Name = s.name
	}
	table.Reset()
	if err := (Result{Machines: []MachineResult{good, six}}).Table(&table); err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"\ndiscover, solicit  1.0 s", "\ntftp, http-boot    4.0 s", "\nscript             5.0 s"} {
		if !strings.Contains(table.String(), line) {
			t.Errorf("no %q in\n%s", line, table.String())
		}
	}
	path := filepath.Join(t.TempDir(), "result.json")
	if err := program.WriteJSON(path, result); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	if got["ok"] != false {
		t.Errorf("ok is %v", got["ok"])
	}
	first := got["machines"].([]any)[0].(map[string]any)
	want := map[string]any{"name": "ack", "ok": false, "seconds": 1.0, "detail": "because"}
	if diff := cmp.Diff(want, first["steps"].([]any)[3]); diff != "" {
		t.Error(diff)
	}
	delete(first, "steps")
	want = map[string]any{"name": "bios", "firmware": "bios", "ok": false, "seconds": 1.0}
	if diff := cmp.Diff(want, first); diff != "" {
		t.Error(diff)
	}
}

func TestStepOf(t *testing.T) {
	for path, want := range map[string]string{
		"/52:54:00:00:00:01/auto.ipxe": StepScript, "/k?x=/i": StepKernel, "/dir/i": StepInitramfs,
		"/ipxe/ipxe.efi":                 StepHTTPBoot,
		"/2009-04-04/meta-data/hostname": "", "/": "",
	} {
		if got := stepOf(path, "k", "i"); got != want {
			t.Errorf("%s: got %q, want %q", path, got, want)
		}
	}
}

func TestLastTrouble(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	text := `{"time":"2026-01-02T03:04:05Z","level":"ERROR","msg":"old"}
{"time":"2026-01-02T03:04:07.5Z","level":"WARN","msg":"new"}
{"time":"2026-01-02T03:04:08Z","level":"INFO","msg":"fine"}
`
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	at := time.Date(2026, 1, 2, 3, 4, 7, 0, time.UTC)
	if got := lastTrouble(path, at); !strings.Contains(got, "new") {
		t.Errorf("got %q", got)
	}
	if got := lastTrouble(path, at.Add(time.Second)); got != "" {
		t.Errorf("got %q", got)
	}
	if got := lastTrouble(path+"-none", at); got != "" {
		t.Errorf("got %q", got)
	}
}
