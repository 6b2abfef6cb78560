package elect

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// hung is a lease whose holder has stood still since a moment, and a candidate that leaves free leases to others for
// long.
func hung(t *testing.T, a *api, change func(*node)) (holder, candidate *node, renewed time.Time) {
	t.Helper()
	holder = start(t, a, "n1", Default)
	outage(t, holder)
	candidate = start(t, a, "n2", Default)
	candidate.set(func(n *node) { n.delay = time.Second })
	time.Sleep(3500 * time.Millisecond)
	holder.set(func(n *node) { n.stopped = time.Now().Add(time.Minute) })
	candidate.set(change)
	time.Sleep(time.Second)
	a.set(func() { renewed = a.lease.Spec.RenewTime.Time })
	return holder, candidate, renewed
}

// What a candidate does before it uses the lease of a node that is gone is done when the lease runs out, and no sooner is
// the lease taken.
func TestCandidatePreparesBeforeTheLeaseEnds(t *testing.T) {
	for name, test := range map[string]struct {
		first bool
		took  time.Duration
	}{
		"ready":            {true, Default.Lease},
		"another is first": {false, Default.Lease + time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := &api{}
				n1, n2, renewed := hung(t, a, func(n *node) { n.first = test.first })
				for !n2.owns() && time.Since(renewed) < time.Minute {
					if n1.owns() && a.holder() != "n1" {
						t.Fatal("the lease was taken while its holder has the address")
					}
					time.Sleep(time.Millisecond)
				}
				if took := time.Since(renewed); took < test.took || took > test.took+10*time.Millisecond {
					t.Errorf("took %v since the last renewal, want %v", took, test.took)
				}
				if n2.ready != 1 {
					t.Errorf("prepared %d times", n2.ready)
				}
				time.Sleep(time.Minute)
				a.end(n1, n2)
			})
		})
	}
}

// A renewal that comes while a candidate prepares ends that: it prepares again when the next end is near.
func TestRenewalEndsPreparing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &api{}
		n1, n2, renewed := hung(t, a, func(n *node) { n.first = true })
		time.Sleep(time.Until(renewed.Add(Default.Lease - lead/2)))
		a.set(func() { // the watch of n2 is late
			l := a.lease.DeepCopy()
			*l.Spec.RenewTime = n1.elector.nextStamp()
			a.store(l)
		})
		again := time.Now()
		synctest.Wait()
		if n2.ready != 1 || !n2.ended {
			t.Errorf("prepared %d times, ended %v", n2.ready, n2.ended)
		}
		outage(t, n2)
		if took := time.Since(again); took < Default.Lease || took > Default.Lease+10*time.Millisecond {
			t.Errorf("took %v since the last renewal", took)
		}
		time.Sleep(time.Minute)
		a.end(n1, n2)
	})
}

// What another node writes into a lease is no renewal: it neither has candidates wait for longer, nor the holder go on.
func TestDoubtIsNoRenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &api{}
		n1, n2, renewed := hung(t, a, func(n *node) { n.first = true })
		time.Sleep(time.Until(renewed.Add(3 * time.Second)))
		if err := n2.elector.Doubt(t.Context(), "n1", "n2 hears nobody"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		for _, n := range []*node{n1, n2} {
			if got := n.elector.Holder().Doubt; got != "n2 hears nobody" {
				t.Errorf("%s knows the doubt %q", n.name, got)
			}
			if got := n.elector.Holder().Renewed; got < 3*time.Second {
				t.Errorf("%s takes it for a renewal, %v ago", n.name, got)
			}
		}
		outage(t, n2)
		if took := time.Since(renewed); took < Default.Lease || took > Default.Lease+10*time.Millisecond {
			t.Errorf("took %v since the last renewal", took)
		}
		if got := n2.elector.Holder().Doubt; got != "" {
			t.Errorf("the doubt %q is left", got)
		}
		synctest.Wait()
		if err := n1.elector.Doubt(t.Context(), "n2", "nobody is there"); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Minute)
		a.end(n1, n2)
	})
}

// A doubt about a holder of before is not written into the lease of the next one.
func TestDoubtIsOfOneHolder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &api{}
		n1 := start(t, a, "n1", Default)
		outage(t, n1)
		n2 := start(t, a, "n2", Default)
		time.Sleep(time.Second)
		a.set(func() { a.delay = func() time.Duration { return 100 * time.Millisecond } })
		doubted := make(chan error, 1)
		go func() { doubted <- n2.elector.Doubt(t.Context(), "n1", "n1 is not heard") }()
		a.set(func() {
			l, stranger := a.lease.DeepCopy(), "stranger"
			l.Spec.HolderIdentity = &stranger
			a.store(l)
		})
		if err := <-doubted; err == nil || !conflicts(errors.Unwrap(err)) {
			t.Errorf("the doubt was written: %v", err)
		}
		a.end(n1, n2)
	})
}
