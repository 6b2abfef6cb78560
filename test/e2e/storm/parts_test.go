package storm

import (
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tinkerbell/stack/test/e2e/bench/rounds"
)

// A bench in parts measures each round once, whichever part that is in, and leaves for the next what it has no time for.
func TestParts(t *testing.T) {
	path := filepath.Join(t.TempDir(), "new", "samples.json")
	measured := 0.0
	measure := func() (rounds.Sample, error) {
		measured++
		return rounds.Sample{"n": measured}, nil
	}
	run := func(within time.Duration, rounds int) (got []float64, left int) {
		t.Helper()
		p, err := openParts(path, within)
		if err != nil {
			t.Fatal(err)
		}
		for range rounds {
			for _, candidate := range Candidates() {
				if s, err := p.next("storm-100", candidate, measure); err == nil {
					got = append(got, s["n"])
				} else if !errors.Is(err, errLeftOut) {
					t.Fatal(err)
				}
			}
		}
		return got, p.left
	}
	for i, each := range []struct {
		within time.Duration
		rounds int
		want   []float64
		left   int
	}{
		{time.Hour, 1, []float64{1, 2}, 0},
		{0, 2, []float64{1, 2}, 2},
		{time.Hour, 3, []float64{1, 2, 3, 4, 5, 6}, 0},
		{0, 3, []float64{1, 2, 3, 4, 5, 6}, 0},
	} {
		got, left := run(each.within, each.rounds)
		if diff := cmp.Diff(each.want, got); diff != "" || left != each.left {
			t.Errorf("part %d: %d left, want %d; samples (-want +got):\n%s", i+1, left, each.left, diff)
		}
	}
	p, err := openParts(path, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		_, _ = p.next("storm-100", Ours, measure)
	}
	broken := errors.New("broken")
	if _, err := p.next("storm-100", Ours, func() (rounds.Sample, error) { return nil, broken }); !errors.Is(err, broken) {
		t.Errorf("got %v", err)
	}
}

var errLeftOut = rounds.ErrLeftOut
