package report

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestWriteKeepsOtherCases(t *testing.T) {
	path := filepath.Join(t.TempDir(), "new", "proxy.json")
	tftp := Row{Case: "tftp-512", Candidate: "ours", Metric: "added_us_per_block", Unit: "us", Median: 9, Runs: 5}
	old := Row{Case: "http-small", Candidate: "ours", Metric: "req_per_s", Unit: "1/s", Median: 1, Runs: 5}
	anew := Row{Case: "http-small", Candidate: "ours", Metric: "req_per_s", Unit: "1/s", Median: 2, Runs: 5}
	for _, rows := range [][]Row{{tftp, old}, {anew}} {
		if err := Write(path, rows); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var got []Row
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]Row{tftp, anew}, got); diff != "" {
		t.Errorf("rows differ (-want +got):\n%s", diff)
	}
}

func TestWriteNamesABrokenFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "proxy.json")
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Write(path, nil); err == nil {
		t.Error("got no error")
	}
}
