package datagram

import (
	"strings"
	"testing"
)

func TestSummarize(t *testing.T) {
	c := benchCase{name: "c", units: map[string]string{"m": "us"}, only: []string{"ours", "absent", "theirs"}}
	got := summarize(c, map[string][]sample{
		"theirs": {{"m": 4}, {"m": 2}},
		"ours":   {{"m": 3}, {"m": 1}, {"m": 8}},
	})
	want := []Row{{"c", "ours", "m", "us", 3, 1, 8, 3}, {"c", "theirs", "m", "us", 3, 2, 4, 2}}
	if len(got) != 2 || got[0] != want[0] || got[1] != want[1] {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestSubtractDirect(t *testing.T) {
	round := map[string]sample{direct: {"us_per_block": 10}, "ours": {"us_per_block": 25}}
	subtractDirect(round)
	if got := round["ours"]["added_us_per_block"]; got != 15 {
		t.Errorf("got %v, want 15", got)
	}
	if _, ok := round[direct]["added_us_per_block"]; ok {
		t.Error("direct adds to itself")
	}
}

func TestMarkdown(t *testing.T) {
	got := Markdown([]Row{
		{"c", "ours", "loss", "%", 0, 0, 0, 5}, {"c", "ours", "rate", "1/s", 2000, 1500, 2500, 5},
		{"c", "theirs", "loss", "%", 10, 0, 20, 5}, {"c", "theirs", "rate", "1/s", 1000, 900, 1100, 5},
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
