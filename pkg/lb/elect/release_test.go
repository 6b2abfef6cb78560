package elect

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// TestReleasedFrom: the next holder learns where the former one has withdrawn, if that one has released the lease in order,
// and in no other case.
func TestReleasedFrom(t *testing.T) {
	tests := map[string]struct {
		fault func(a *api, holder *node)
		want  string
	}{
		"the holder leaves": {func(_ *api, n *node) { n.leave() }, "station of n1"},
		"the holder does not serve": {
			func(_ *api, n *node) { n.set(func(n *node) { n.cannot = errors.New("no endpoint") }) }, "station of n1",
		},
		"the holder stands still": {
			func(_ *api, n *node) { n.set(func(n *node) { n.stopped = time.Now().Add(20 * time.Second) }) }, "",
		},
		"somebody has removed the holder from the lease": {
			func(a *api, n *node) {
				n.set(func(n *node) { n.cannot, n.stuck = errors.New("no endpoint"), errors.New("not permitted") })
				a.set(func() {
					l := a.lease.DeepCopy()
					l.Spec.HolderIdentity = nil
					a.store(l)
				})
			}, "",
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := &api{}
				n0 := start(t, a, "n0", Default)
				outage(t, n0)
				n0.leave() // so that n1 has a lease which was released
				n1 := start(t, a, "n1", Default)
				outage(t, n1)
				n2 := start(t, a, "n2", Default)
				time.Sleep(3 * time.Second)
				a.set(func() {
					if from, is := a.lease.Annotations[FromAnnotation]; is {
						t.Errorf("a lease that is held says that it was released from %q", from)
					}
				})
				test.fault(a, n1)
				outage(t, n2)
				n2.set(func(n *node) {
					if n.from != test.want {
						t.Errorf("the lease was released from %q, want %q", n.from, test.want)
					}
				})
				a.end(n1, n2)
			})
		})
	}
}

// A node that is told to leave while it acquires the lease releases it, and does not begin to use it.
func TestLeaveWhileTheLeaseIsAcquired(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &api{delay: func() time.Duration { return 500 * time.Millisecond }}
		n1 := start(t, a, "n1", Default)
		time.Sleep(1300 * time.Millisecond) // it was read, and is about to be written
		began := time.Now()
		n1.leave()
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("it left after %v", took)
		}
		n1.set(func(n *node) {
			if n.firsts > 0 {
				t.Errorf("it began to use the lease %d times", n.firsts)
			}
		})
		if !a.exists() || a.holder() != "" {
			t.Error("it has not released the lease")
		}
		a.requests.Wait()
	})
}
