package doctor_test

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tinkerbell/stack/test/e2e/doctor"
	"github.com/tinkerbell/stack/test/e2e/lab"
	"github.com/tinkerbell/stack/test/e2e/program"
)

func TestMain(m *testing.M) {
	lab.Init()
	os.Exit(m.Run())
}

// TestDoctorInTheLab: with the whole stack behind it nothing is wrong. "make doctor" stages all faults.
func TestDoctorInTheLab(t *testing.T) {
	if err := lab.Preflight(); errors.Is(err, lab.ErrUnsupported) {
		t.Skip(err)
	}
	if testing.Short() {
		t.Skip("-short: it brings up a lab")
	}
	repo, err := program.Repo()
	if err != nil {
		t.Fatal(err)
	}
	results, err := doctor.Run(t.Context(), doctor.Options{
		Healthy: 1, Dir: filepath.Join(repo, "build", "lab", t.Name()), Logf: t.Logf,
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range results {
		if !r.OK {
			t.Errorf("%s: %s", r.Fault, r.Trouble)
		}
	}
}

func TestFaultsHaveNames(t *testing.T) {
	seen := map[string]bool{}
	for _, f := range doctor.Faults() {
		if seen[f.ID()] || f.Finding == "" || strings.ContainsAny(f.ID(), " /") {
			t.Errorf("fault %q has the id %q and the finding %q", f.Name, f.ID(), f.Finding)
		}
		seen[f.ID()] = true
	}
	if len(seen) < 20 {
		t.Errorf("%d faults", len(seen))
	}
}

func TestResult(t *testing.T) {
	results := []doctor.Result{{Fault: "kernel 404", Expected: "not-found", Said: "not-found", OK: true, Seconds: 5.25, Frames: 99}}
	path := filepath.Join(t.TempDir(), "doctor", "result.json")
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
	want := []map[string]any{{
		"fault": "kernel 404", "expected": "not-found", "said": "not-found", "ok": true, "seconds": 5.25, "frames": 99.0,
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
