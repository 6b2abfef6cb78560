package boots_test

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tinkerbell/stack/test/e2e/boots"
	"github.com/tinkerbell/stack/test/e2e/lab"
	"github.com/tinkerbell/stack/test/e2e/machine"
	"github.com/tinkerbell/stack/test/e2e/program"
)

func TestMain(m *testing.M) {
	lab.Init()
	os.Exit(m.Run())
}

// TestFaults stages every fault with the Go machine. "make boots" does with real firmware.
func TestFaults(t *testing.T) {
	if err := lab.Preflight(); errors.Is(err, lab.ErrUnsupported) {
		t.Skip(err)
	}
	if testing.Short() {
		t.Skip("-short: it boots machines")
	}
	ctx := t.Context()
	repo, err := program.Repo()
	if err != nil {
		t.Fatal(err)
	}
	media, err := machine.PrepareMedia(ctx, filepath.Join(repo, "test", "e2e"),
		filepath.Join(repo, "build", "cache", "media-go"), nil)
	if err != nil {
		t.Fatal(err)
	}
	results, err := boots.Run(ctx, boots.Options{
		Faults: boots.Faults(), Media: media, Dir: filepath.Join(repo, "build", "lab", "boots-"+t.Name()), Logf: t.Logf,
		Patience: 2 * time.Minute, WireOnly: os.Getenv("WIRE_ONLY") != "",
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range results {
		t.Run(r.Fault, func(t *testing.T) {
			t.Logf("%s after %.1f s: %s", r.Said, r.Seconds, r.Text)
			if !r.OK {
				t.Errorf("it says %q, should say %q: %s", r.Said, r.Expected, r.Trouble)
			}
		})
	}
}

func TestResult(t *testing.T) {
	results := []boots.Result{
		{Fault: "Smee gone", Machine: "uefi", Expected: "no-server", Said: "no-server", OK: true, Seconds: 1.25, Text: "t"},
		{Fault: "kernel gone", Machine: "go", Expected: "not-found", Said: "booting at kernel", Seconds: 90, Trouble: "why"},
	}
	path := filepath.Join(t.TempDir(), "boots", "result.json")
	if err := program.WriteJSON(path, results); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var got []map[string]any
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	want := map[string]any{
		"fault": "Smee gone", "machine": "uefi", "expected": "no-server", "said": "no-server", "certain": false, "ok": true,
		"seconds": 1.25, "text": "t",
	}
	if diff := cmp.Diff(want, got[0]); diff != "" || len(got) != 2 {
		t.Errorf("%d results: %s", len(got), diff)
	}
	var table strings.Builder
	if err := boots.Table(&table, results); err != nil {
		t.Fatal(err)
	}
	want2 := `row  fault        machine  expected   said               certain  ok     verdict  seconds
     Smee gone    uefi     no-server  no-server          false    true            1.2
     kernel gone  go       not-found  booting at kernel  false    false           90.0
`
	if diff := cmp.Diff(want2, table.String()); diff != "" {
		t.Error(diff)
	}
}

// TestFaultsAreMachines: each fault is a machine of its own, and a name for files.
func TestFaultsAreMachines(t *testing.T) {
	ids := map[string]bool{}
	virtual := 0
	for _, f := range boots.Faults() {
		if ids[f.ID()] || strings.ContainsAny(f.ID(), "/ ") || f.Cause == "" {
			t.Errorf("fault %q has the id %q, the cause %q", f.Name, f.ID(), f.Cause)
		}
		ids[f.ID()] = true
		if boots.WithFirmware(f) {
			virtual++
		}
	}
	if len(ids) != 11 || virtual < 8 {
		t.Errorf("%d faults, %d of them with firmware, want 11 and 8 at least", len(ids), virtual)
	}
}
