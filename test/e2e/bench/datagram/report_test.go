package datagram

import (
	"strings"
	"testing"

	"github.com/tinkerbell/stack/test/e2e/bench/report"
	"github.com/tinkerbell/stack/test/e2e/bench/rounds"
)

func TestSubtractDirect(t *testing.T) {
	round := map[string]rounds.Sample{direct: {"us_per_block": 10}, "ours": {"us_per_block": 25}}
	subtractDirect(round)
	if got := round["ours"]["added_us_per_block"]; got != 15 {
		t.Errorf("got %v, want 15", got)
	}
	if _, ok := round[direct]["added_us_per_block"]; ok {
		t.Error("direct adds to itself")
	}
}

func TestMarkdown(t *testing.T) {
	got := Markdown([]report.Row{
		{Case: "c", Candidate: "ours", Metric: "loss", Unit: "%", Median: 0, Min: 0, Max: 0, Runs: 5}, {Case: "c", Candidate: "ours", Metric: "rate", Unit: "1/s", Median: 2000, Min: 1500, Max: 2500, Runs: 5},
		{Case: "c", Candidate: "theirs", Metric: "loss", Unit: "%", Median: 10, Min: 0, Max: 20, Runs: 5}, {Case: "c", Candidate: "theirs", Metric: "rate", Unit: "1/s", Median: 1000, Min: 900, Max: 1100, Runs: 5},
	})
	for _, want := range []string{
		"c/loss (%, median of 5, min to max)\nours                 0.0 ",
		"c/rate (1/s, median of 5, min to max)\nours                2000  " + strings.Repeat("#", barWidth) + "  1500 to 2500\n",
		"theirs              1000  " + strings.Repeat("#", barWidth/2) + " ",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is missing in:\n%s", want, got)
		}
	}
	if n := strings.Count(got, "median of"); n != 2 {
		t.Errorf("%d charts, want 2:\n%s", n, got)
	}
}
