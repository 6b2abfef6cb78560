// Package backoff says how long to wait before something that failed is tried again.
package backoff

import (
	"context"
	"math/rand/v2"
	"time"
)

// Backoff doubles the wait from First with each failure, up to Most. A random half of it is taken off, so that the
// pods which lost the same server do not come back at one moment.
type Backoff struct {
	First, Most time.Duration

	failures int
}

// Next is how long to wait after one more failure: from half of the time to all of it.
func (b *Backoff) Next() time.Duration {
	wait := Doubled(b.First, b.Most, b.failures)
	b.failures++
	return wait/2 + rand.N(wait/2+1)
}

// Reset begins again with First.
func (b *Backoff) Reset() { b.failures = 0 }

// Wait waits for [Backoff.Next], or until ctx is done.
func (b *Backoff) Wait(ctx context.Context) {
	timer := time.NewTimer(b.Next())
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// Doubled is first, doubled so many times, and most at most.
func Doubled(first, most time.Duration, times int) time.Duration {
	for ; times > 0 && first < most; times-- {
		if first > most/2 {
			return most
		}
		first *= 2
	}
	return max(min(first, most), 0)
}
