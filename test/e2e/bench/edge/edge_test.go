package edge

import (
	"math"
	"testing"
)

func TestJain(t *testing.T) {
	for name, test := range map[string]struct {
		seconds []float64
		want    float64
	}{
		"all alike":            {[]float64{2, 2, 2, 2}, 1},
		"two at half the rate": {[]float64{1, 1, 2, 2}, 0.9},
		"one gets it all":      {[]float64{1, 1e9, 1e9, 1e9}, 0.25},
	} {
		if got := jain(test.seconds); math.Abs(got-test.want) > 1e-6 {
			t.Errorf("%s: got %v, want %v", name, got, test.want)
		}
	}
}

func TestBenchmarkLine(t *testing.T) {
	out := "pkg: x\nBenchmarkCheck/ES256/new-2   \t   13281\t     90164 ns/op\t    4872 B/op\t      99 allocs/op\nPASS\n"
	match := benchmarkLine.FindStringSubmatch(out)
	if len(match) != 4 || match[1] != "new" || match[2] != "90164" || match[3] != "99" {
		t.Errorf("got %q", match)
	}
}
