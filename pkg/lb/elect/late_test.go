package elect

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	coordination "k8s.io/api/coordination/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// slowed is the way of one node to the API, on which answers are late.
type slowed struct {
	*api
	by atomic.Int64
}

func (s *slowed) later(ctx context.Context, l *coordination.Lease, err error) (*coordination.Lease, error) {
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(time.Duration(s.by.Load())):
		return l, err
	}
}

func (s *slowed) Get(ctx context.Context, name string, o meta.GetOptions) (*coordination.Lease, error) {
	l, err := s.api.Get(ctx, name, o)
	return s.later(ctx, l, err)
}

func (s *slowed) Update(ctx context.Context, l *coordination.Lease, o meta.UpdateOptions) (*coordination.Lease, error) {
	l, err := s.api.Update(ctx, l, o)
	return s.later(ctx, l, err)
}

func (s *slowed) Patch(ctx context.Context, name string, kind types.PatchType, text []byte, o meta.PatchOptions, _ ...string) (*coordination.Lease, error) {
	l, err := s.api.Patch(ctx, name, kind, text, o)
	return s.later(ctx, l, err)
}

// served is for which part of the time one of the nodes owns the address, and never two.
func served(t *testing.T, during time.Duration, nodes ...*node) float64 {
	t.Helper()
	const step = 10 * time.Millisecond
	owned, steps := 0, int(during/step)
	for range steps {
		time.Sleep(step)
		owners := 0
		for _, n := range nodes {
			if n.owns() {
				owners++
			}
		}
		if owners > 1 {
			t.Fatal("two owners")
		}
		owned += owners
	}
	return float64(owned) / float64(steps)
}

// An API that takes up to three seconds for each request costs nothing, whether its requests or its answers are late, and
// whether the address was held before.
func TestAddressSurvivesASlowAPI(t *testing.T) {
	for _, latency := range []time.Duration{
		time.Second, 1400 * time.Millisecond, 2 * time.Second, 3 * time.Second, 3400 * time.Millisecond,
	} {
		for _, before := range []bool{true, false} {
			for _, answers := range []bool{true, false} {
				t.Run(fmt.Sprintf("%v, held before %v, answers alone %v", latency, before, answers), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						a := &api{}
						latency := latency
						if before && latency == 3*time.Second {
							latency -= 50 * time.Millisecond // the last quick renewal lasts for 4 s, and the next one begins after 1 s
						}
						slow := func() {
							if late := func() time.Duration { return latency }; answers {
								a.answer = late
							} else {
								a.delay = func() time.Duration { return latency / 2 }
							}
						}
						if !before {
							slow()
						}
						n1, n2 := start(t, a, "n1", Default), start(t, a, "n2", Default)
						outage(t, n1, n2)
						a.set(slow)
						least := 1.0
						if before && latency > 3*time.Second { // for a moment, until the first late answer is there
							least = 0.95
						}
						if part := served(t, 30*time.Second, n1, n2); part < least {
							t.Errorf("the address is there for %.0f %% of the time", 100*part)
						}
						a.set(func() {
							if a.renewals > 60 && latency < 2*time.Second || a.renewals > 110 {
								t.Errorf("%d renewals in some 30 s", a.renewals)
							}
							if a.busiest > 2*mostAtOnce { // of both nodes, that wait to acquire the lease as well
								t.Errorf("%d requests under way", a.busiest)
							}
							a.delay, a.answer = nil, nil
						})
						a.end(n1, n2)
					})
				})
			}
		}
	}
}

// A holder that learns too late of what it has written leaves the lease to another node, rather than renew it for ever
// without using it.
func TestHolderThatLearnsTooLateLeavesTheLease(t *testing.T) {
	for _, latency := range []time.Duration{4500 * time.Millisecond, 6 * time.Second} {
		t.Run(latency.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := &api{}
				slow := &slowed{api: a}
				n1 := startFor(t, a, slow, "n1", Default, nil)
				outage(t, n1)
				n2 := start(t, a, "n2", Default)
				time.Sleep(5 * time.Second)
				slow.by.Store(int64(latency))
				a.set(func() {
					a.late = func(e *Elector) time.Duration {
						if e == n1.elector {
							return latency
						}
						return 0
					}
				})
				time.Sleep(20 * time.Second)
				if !n2.owns() {
					t.Errorf("n2 does not own the address, which n1 cannot keep (n1 owns it: %v)", n1.owns())
				}
				if part := served(t, 30*time.Second, n1, n2); part < 1 {
					t.Errorf("the address is there for %.0f %% of the time", 100*part)
				}
				slow.by.Store(0)
				a.end(n1, n2)
			})
		})
	}
}

// What was written after the holder had given up gives it the lease back at once.
func TestLateSuccessIsCredited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &api{}
		n1, n2 := start(t, a, "n1", Default), start(t, a, "n2", Default)
		outage(t, n1, n2)
		time.Sleep(5 * time.Second)
		began := time.Now()
		// All requests of five seconds come to the server at their end.
		a.set(func() { a.delay = func() time.Duration { return max(0, 5*time.Second-time.Since(began)) } })
		time.Sleep(4900 * time.Millisecond)
		if n1.owns() || n2.owns() {
			t.Error("the address is owned without a renewal")
		}
		time.Sleep(200 * time.Millisecond)
		if !n1.owns() && !n2.owns() {
			t.Error("nobody owns the address though renewals have come in")
		}
		a.end(n1, n2)
	})
}

// mostAtOnce is how many requests of a node may be under way: those half a retry period apart until the deadline, the one
// that acquires the lease, and one that begins as another ends.
const mostAtOnce = 2*4 + 2

// However long the API hangs, a bounded number of renewals waits for it; when it answers again, the lease is held soon.
func TestRenewalsUnderWayAreBounded(t *testing.T) {
	for name, times := range map[string]Times{
		"default": Default, "short": {Lease: 3 * time.Second, Deadline: time.Second, Retry: 300 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := &api{}
				n1 := startFor(t, a, a, "n1", times, nil)
				outage(t, n1)
				began := time.Now()
				a.set(func() {
					a.busiest = 0
					a.delay = func() time.Duration { return max(0, time.Minute-time.Since(began)) }
				})
				time.Sleep(time.Minute)
				a.set(func() {
					if a.busiest > mostAtOnce {
						t.Errorf("%d requests under way", a.busiest)
					}
				})
				time.Sleep(times.Retry)
				if !n1.owns() {
					t.Error("the lease is not held again")
				}
				a.end(n1)
			})
		})
	}
}
