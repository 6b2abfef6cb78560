package lb

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// A burst at once, then slowly.
func TestScheduleOfAnnouncements(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		var sent []time.Duration
		a := newAnnouncer(func() error { sent = append(sent, time.Since(start)); return nil }, always, func(error) {
			t.Error("told of a failure")
		})
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); a.run(ctx) }()
		time.Sleep(130 * time.Second)
		stop()
		<-done
		ms := time.Millisecond
		want := []time.Duration{
			0, 1100 * ms, 2200 * ms, 3300 * ms, 4400 * ms, 64400 * ms, 124400 * ms,
		}
		if diff := cmp.Diff(want, sent); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}

func TestFailureIsToldUntilItIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		down, calls := errors.New("network is down"), 0
		var told []error
		a := newAnnouncer(func() error {
			if calls++; calls == 2 || calls == 3 {
				return down
			}
			return nil
		}, always, func(err error) { told = append(told, err) })
		ctx, stop := context.WithTimeout(t.Context(), 10*time.Second)
		defer stop()
		a.run(ctx)
		if len(told) != 3 || !errors.Is(told[0], down) || !errors.Is(told[1], down) || told[2] != nil {
			t.Errorf("told %v", told)
		}
	})
}

func always() bool { return true }

// Another station's claim is answered at once, and a flood of them once a second.
func TestDefenceIsAtOnceAndOnceASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		var sent []time.Duration
		a := newAnnouncer(func() error { sent = append(sent, time.Since(start)); return nil }, always, func(error) {})
		ctx, stop := context.WithTimeout(t.Context(), 100*time.Second)
		defer stop()
		done := make(chan struct{})
		go func() { defer close(done); a.run(ctx) }()
		time.Sleep(10 * time.Second)
		synctest.Wait()
		sent = nil
		a.defend()
		synctest.Wait()
		for range 250 { // 2.5 s of a flood
			time.Sleep(10 * time.Millisecond)
			a.defend()
		}
		<-done
		ms := time.Millisecond
		want := []time.Duration{10000 * ms, 11000 * ms, 12000 * ms, 13000 * ms, 73000 * ms}
		if diff := cmp.Diff(want, sent); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}

// A process that has stood still until its grant has ended says nothing when it goes on, whatever is due and whoever claims
// the address.
func TestNothingIsSaidAfterTheGrant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		end, sent := time.Now().Add(2*time.Second), 0
		a := newAnnouncer(func() error { sent++; return nil }, func() bool { return time.Now().Before(end) }, func(error) {})
		ctx, stop := context.WithTimeout(t.Context(), 100*time.Second)
		defer stop()
		go func() {
			time.Sleep(50 * time.Second)
			a.defend()
		}()
		a.run(ctx)
		if sent != 2 { // at 0 and 1.1 s
			t.Errorf("announced %d times", sent)
		}
	})
}
