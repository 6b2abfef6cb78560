package backoff

import (
	"context"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestDoubled(t *testing.T) {
	const s = time.Second
	for name, test := range map[string]struct {
		first, most time.Duration
		want        []time.Duration // after 0, 1, ... failures
	}{
		"up to a power":      {s, 8 * s, []time.Duration{s, 2 * s, 4 * s, 8 * s, 8 * s, 8 * s}},
		"up to between":      {s, 5 * s, []time.Duration{s, 2 * s, 4 * s, 5 * s, 5 * s}},
		"first above most":   {5 * s, s, []time.Duration{s, s}},
		"nothing":            {0, s, []time.Duration{0, 0}},
		"most is as it gets": {s << 32, math.MaxInt64, []time.Duration{s << 32, s << 33, math.MaxInt64, math.MaxInt64}},
	} {
		var got []time.Duration
		for n := range test.want {
			got = append(got, Doubled(test.first, test.most, n))
		}
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	if got := Doubled(s, time.Hour, math.MaxInt); got != time.Hour {
		t.Errorf("after very many failures: got %v", got)
	}
}

// Each wait lies between half of the doubled time and all of it, two programs do not wait for the same time, and Reset
// begins again.
func TestWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := Backoff{First: time.Second, Most: 10 * time.Second}, Backoff{First: time.Second, Most: 10 * time.Second}
		wait := func(b *Backoff) time.Duration {
			begun := time.Now()
			b.Wait(t.Context())
			return time.Since(begun)
		}
		differ := false
		const s = time.Second
		for n, most := range []time.Duration{s, 2 * s, 4 * s, 8 * s, 10 * s, 10 * s, 10 * s} {
			first, second := wait(&a), wait(&b)
			for _, got := range []time.Duration{first, second} {
				if got < most/2 || got > most {
					t.Errorf("wait %d: got %v, want %v to %v", n, got, most/2, most)
				}
			}
			differ = differ || first != second
		}
		if !differ {
			t.Error("no jitter")
		}
		a.Reset()
		if got := wait(&a); got > time.Second {
			t.Errorf("after a success: got %v", got)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		begun := time.Now()
		if b.Wait(ctx); time.Since(begun) != time.Second {
			t.Errorf("a wait went on for %v after the end of its context", time.Since(begun)-time.Second)
		}
	})
}
