package elect

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// node is a node with an address of the kernel's: there until it is taken away, or until its end.
type node struct {
	elector *Elector
	name    string
	stop    context.CancelFunc
	done    chan struct{}

	mu                 sync.Mutex
	cannot             error // why it is no candidate
	refuse             error // of Renewed
	stuck              error // of Withdraw
	end                time.Time
	stopped            time.Time // until then its process does not run
	firsts             int
	from               string // of the last grant that was a first
	first              bool   // what Prepare says, after lead, unless its context ends
	ended              bool   // the context of the last Prepare did
	ready              int    // how often Prepare was called
	delay              time.Duration
	note               string // what stands in its lease
	why                []error
	undisputed, serves bool   // what Undisputed and Serves say
	former             string // of the last grant that was a first
}

func (n *node) owns() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return time.Now().Before(n.end)
}

// stand is where a process stops when it is told to.
func (n *node) stand() {
	n.mu.Lock()
	until := n.stopped
	n.mu.Unlock()
	time.Sleep(time.Until(until))
}

// reason is why it withdrew for the first time.
func (n *node) reason() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.why) == 0 {
		return nil
	}
	return n.why[0]
}

// set changes the node, and has it look.
func (n *node) set(change func(*node)) {
	n.mu.Lock()
	change(n)
	n.mu.Unlock()
	n.elector.Poke()
}

// start runs a node on the API.
func start(t *testing.T, a *api, name string, times Times) *node {
	t.Helper()
	return startFor(t, a, a, name, times, nil)
}

// startFor runs a node on its own way to the API, whose leases go with an owner.
func startFor(t *testing.T, a *api, leases Leases, name string, times Times, owner *meta.OwnerReference) *node {
	t.Helper()
	n := &node{name: name, done: make(chan struct{}), first: true, note: "station of " + name}
	n.elector = New(Config{
		Leases: leases, Name: "vip", Owner: owner, Identity: name, Times: times,
		Lead: lead, Prepare: n.prepare,
		Annotations: func() map[string]string {
			n.mu.Lock()
			defer n.mu.Unlock()
			return map[string]string{StationsAnnotation: n.note}
		},
		Delay: func() time.Duration {
			n.mu.Lock()
			defer n.mu.Unlock()
			return n.delay
		},
		Undisputed: func() bool {
			n.mu.Lock()
			defer n.mu.Unlock()
			return n.undisputed
		},
		Serves: func(context.Context) bool {
			n.mu.Lock()
			defer n.mu.Unlock()
			return n.serves
		},
		Candidate: func() error {
			n.stand()
			n.mu.Lock()
			defer n.mu.Unlock()
			return n.cannot
		},
		Renewed: func(_ context.Context, g Grant) error {
			n.stand()
			n.mu.Lock()
			defer n.mu.Unlock()
			if g.First {
				n.firsts++
				n.from, n.former = g.From, g.Former
			}
			if n.refuse == nil {
				// As late as the kernel may be.
				left := times.Hold() - time.Since(g.Start) - time.Second
				if left < time.Second {
					return errors.New("too late")
				}
				n.end = time.Now().Add(left.Truncate(time.Second) + 999*time.Millisecond)
			}
			return n.refuse
		},
		Withdraw: func(why error) (string, error) {
			n.mu.Lock()
			defer n.mu.Unlock()
			n.why = append(n.why, why)
			if n.stuck == nil {
				n.end = time.Time{}
			}
			return n.note, n.stuck
		},
	})
	a.set(func() { a.electors = append(a.electors, n.elector) })
	ctx, stop := context.WithCancel(t.Context())
	n.stop = stop
	go func() { defer close(n.done); n.elector.Run(ctx) }()
	return n
}

// lead is how long before the end of a lease a node prepares, and most of it is how long that takes.
const lead = 400 * time.Millisecond

func (n *node) prepare(ctx context.Context) bool {
	timer := time.NewTimer(lead - 50*time.Millisecond)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.ready++
	n.ended = ctx.Err() != nil
	return n.first && !n.ended
}

func (n *node) leave() {
	n.stop()
	<-n.done
}

// end has the nodes leave one after the other, and waits for what they have asked the API.
func (a *api) end(nodes ...*node) {
	for _, n := range nodes {
		n.leave()
	}
	a.requests.Wait()
}

// outage is how long it takes until one of the nodes owns the address.
func outage(t *testing.T, nodes ...*node) time.Duration {
	t.Helper()
	start := time.Now()
	for time.Since(start) < time.Minute {
		for _, n := range nodes {
			if n.owns() {
				return time.Since(start)
			}
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatal("nobody owns the address for a minute")
	return 0
}

func TestLeaseMoves(t *testing.T) {
	tests := map[string]struct {
		fault func(t *testing.T, a *api, holder *node)
		most  time.Duration
		why   error
	}{
		"the node leaves": {
			fault: func(_ *testing.T, _ *api, n *node) { n.leave() }, most: 20 * time.Millisecond, why: ErrLeaving,
		},
		"the node does not serve": {
			fault: func(_ *testing.T, _ *api, n *node) {
				n.set(func(n *node) { n.cannot = errors.New("no endpoint") })
			}, most: 20 * time.Millisecond,
		},
		"the address cannot be put any more": {
			fault: func(_ *testing.T, _ *api, n *node) { n.set(func(n *node) { n.refuse = errors.New("link is gone") }) },
			most:  1020 * time.Millisecond,
		},
		"the lease was taken by hand": {
			fault: func(_ *testing.T, a *api, n *node) {
				a.set(func() {
					stranger, l := "stranger", a.lease.DeepCopy()
					l.Spec.HolderIdentity = &stranger
					a.store(l)
				})
			}, most: 7020 * time.Millisecond, why: ErrTaken,
		},
		"the lease was deleted by hand": {
			fault: func(_ *testing.T, a *api, n *node) { a.set(a.remove) },
			most:  20 * time.Millisecond, why: ErrDeleted, // its last holder is the first to know
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := &api{}
				n1 := start(t, a, "n1", Default)
				outage(t, n1)
				n2 := start(t, a, "n2", Default)
				time.Sleep(10 * time.Second)
				if !n1.owns() || n2.owns() {
					t.Fatalf("n1 owns %v, n2 owns %v", n1.owns(), n2.owns())
				}
				test.fault(t, a, n1)
				began := time.Now()
				for n1.reason() == nil {
					if time.Since(began) > 2*time.Second {
						t.Fatal("n1 has not withdrawn")
					}
					synctest.Wait()
					time.Sleep(time.Millisecond)
				}
				outage(t, n1, n2)
				if took := time.Since(began); took > test.most {
					t.Errorf("took %v, more than %v", took, test.most)
				}
				if n1.owns() && n2.owns() {
					t.Error("two owners")
				}
				if test.why != nil && !errors.Is(n1.reason(), test.why) {
					t.Errorf("withdrawn since %v, want %v", n1.reason(), test.why)
				}
				a.end(n1, n2)
				if holder := a.holder(); n2.owns() || holder != "" {
					t.Errorf("left the lease to %q", holder)
				}
			})
		})
	}
}

// A node that dies (its elector never runs again) loses the lease after its time, and not before; whether it restarts
// under its name, it has it back at once.
func TestNodeThatDies(t *testing.T) {
	for _, restarts := range []bool{false, true} {
		t.Run(fmt.Sprintf("restarts %v", restarts), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := &api{}
				nobody, dead, seconds := "", "n1", int32(6)
				n2 := start(t, a, "n2", Default)
				outage(t, n2)
				n2.set(func(n *node) { n.cannot = errors.New("waits") })
				time.Sleep(time.Second)
				if a.holder() != nobody {
					t.Fatalf("holder %q", a.holder())
				}
				a.set(func() {
					l := a.lease.DeepCopy()
					l.Spec.HolderIdentity, l.Spec.LeaseDurationSeconds = &dead, &seconds
					a.store(l)
				})
				n2.set(func(n *node) { n.cannot = nil })
				if restarts {
					n1 := start(t, a, dead, Default)
					if took := outage(t, n1); took > 20*time.Millisecond {
						t.Errorf("took %v", took)
					}
					n1.leave()
				} else if took := outage(t, n2); took < 6*time.Second || took > 6020*time.Millisecond {
					t.Errorf("took %v", took)
				}
				n2.leave()
				a.requests.Wait()
			})
		})
	}
}

// Without the API the holder gives up in time, and has the address again when the API is back.
func TestAPIAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &api{}
		n1, n2 := start(t, a, "n1", Default), start(t, a, "n2", Default)
		outage(t, n1, n2)
		time.Sleep(5500 * time.Millisecond)
		a.set(func() { a.away = true })
		time.Sleep(4 * time.Second)
		if n1.owns() || n2.owns() {
			t.Error("the address is owned though nobody can renew")
		}
		time.Sleep(56 * time.Second)
		a.set(func() { a.away = false })
		if took := outage(t, n1, n2); took > 1500*time.Millisecond {
			t.Errorf("took %v", took)
		}
		a.end(n1, n2)
	})
}

// A lease that was deleted while a node holds it, which does not know yet, is held for its time.
func TestDeletedLeaseIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &api{}
		n1 := start(t, a, "n1", Default)
		outage(t, n1)
		n2 := start(t, a, "n2", Default)
		time.Sleep(2 * time.Second)
		n1.set(func(n *node) { n.stopped = time.Now().Add(10 * time.Second) })
		a.set(a.remove)
		for began := time.Now(); time.Since(began) < 8*time.Second; time.Sleep(10 * time.Millisecond) {
			if n1.owns() && n2.owns() {
				t.Fatal("two owners")
			}
		}
		if !n2.owns() {
			t.Error("nobody owns the address")
		}
		a.end(n1, n2)
	})
}

func TestLeaseIsNotReleasedWhileTheAddressIsThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &api{}
		n1 := start(t, a, "n1", Default)
		outage(t, n1)
		n2 := start(t, a, "n2", Default)
		time.Sleep(3 * time.Second)
		n1.set(func(n *node) { n.stuck = errors.New("operation not permitted") })
		n1.leave()
		if !n1.owns() {
			t.Fatal("the test's node has no address any more")
		}
		for n1.owns() {
			if n2.owns() {
				t.Fatal("two owners")
			}
			time.Sleep(10 * time.Millisecond)
		}
		outage(t, n2)
		n2.leave()
		a.requests.Wait()
	})
}

// TestLeaseGoesWithItsHoldersOwner: a Lease that a run before has left with an owner that is gone is not collected.
func TestLeaseGoesWithItsHoldersOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &api{}
		for _, uid := range []types.UID{"first", "second"} {
			n := startFor(t, a, a, "n1", Default, &meta.OwnerReference{
				APIVersion: "v1", Kind: "ServiceAccount", Name: "stack-lb", UID: uid,
			})
			outage(t, n)
			time.Sleep(2 * Default.Retry)
			a.set(func() {
				if len(a.lease.OwnerReferences) != 1 || a.lease.OwnerReferences[0].UID != uid {
					t.Errorf("the lease of %s has owners %v", uid, a.lease.OwnerReferences)
				}
			})
			n.leave()
		}
		a.requests.Wait()
	})
}

// What a holder says of itself is brought up to date with a renewal.
func TestAnnotationsFollowTheHolder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &api{}
		n1 := start(t, a, "n1", Default)
		outage(t, n1)
		n1.set(func(n *node) { n.note = "a second card" })
		time.Sleep(Default.Retry + time.Millisecond)
		synctest.Wait()
		if got := n1.elector.Holder().Stations; got != "a second card" {
			t.Errorf("the lease says %q", got)
		}
		time.Sleep(10 * Default.Retry)
		if !n1.owns() {
			t.Error("renewals fail since")
		}
		n1.leave()
		a.requests.Wait()
	})
}

// A holder whose annotations somebody has removed writes them again, and keeps the lease.
func TestAnnotationsThatWereRemovedByHand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &api{}
		n1 := start(t, a, "n1", Default)
		outage(t, n1)
		a.set(func() {
			bare := a.lease.DeepCopy()
			bare.Annotations = nil
			a.store(bare)
		})
		time.Sleep(10 * Default.Retry)
		if got := n1.elector.Holder().Stations; got != "station of n1" {
			t.Errorf("the lease says %q", got)
		}
		if why := n1.reason(); why != nil {
			t.Errorf("the lease was lost: %v", why)
		}
		a.end(n1)
	})
}

// A lease that somebody has given a day, after its holder has died, is not waited for that long.
func TestLongestLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &api{}
		n1 := start(t, a, "n1", Default)
		outage(t, n1)
		n2 := start(t, a, "n2", Default)
		n1.set(func(n *node) { n.stopped = time.Now().Add(time.Hour) })
		time.Sleep(time.Second)
		a.set(func() {
			edited := a.lease.DeepCopy()
			edited.Spec.LeaseDurationSeconds = new(int32(86400))
			a.store(edited)
		})
		time.Sleep(maxDuration + Default.Lease)
		if !n2.owns() {
			t.Error("nobody has taken the lease")
		}
		a.end(n2, n1)
	})
}

// TestNeverTwoOwners has nodes on an API whose requests are late, lost, answered to nobody and refused, while nodes leave,
// come, stop serving, and stand still for seconds: at no time do two own the address, kernel's delay included.
func TestNeverTwoOwners(t *testing.T) {
	for seed := range uint64(30) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := random(seed)
				a := &api{}
				a.set(func() {
					a.delay = func() time.Duration {
						if r.IntN(20) == 0 {
							return time.Duration(r.IntN(9000)) * time.Millisecond
						}
						return time.Duration(r.IntN(100)) * time.Millisecond
					}
					a.lose = func() bool { return r.IntN(10) == 0 }
				})
				lock := a.delay
				a.delay = func() time.Duration { a.mu.Lock(); defer a.mu.Unlock(); return lock() }
				names := []string{"n0", "n1", "n2"}
				nodes := make([]*node, len(names))
				for i, name := range names {
					nodes[i] = start(t, a, name, Default)
				}
				owned := 0
				for step := range 60000 {
					time.Sleep(10 * time.Millisecond)
					owners := 0
					for _, n := range nodes {
						if n.owns() {
							owners++
						}
					}
					if owners > 1 {
						t.Fatalf("two owners after %d steps", step)
					}
					owned += owners
					if step%500 != 0 {
						continue
					}
					a.mu.Lock()
					i, action := r.IntN(len(nodes)), r.IntN(6)
					long := time.Duration(r.IntN(15000)) * time.Millisecond
					a.mu.Unlock()
					switch action {
					case 0:
						nodes[i].leave()
						nodes[i] = start(t, a, names[i], Default)
					case 1:
						nodes[i].set(func(n *node) { n.cannot = errors.New("no endpoint") })
					case 2:
						for _, n := range nodes {
							n.set(func(n *node) { n.cannot = nil })
						}
					case 3:
						a.set(func() { a.away = !a.away })
					case 4, 5:
						nodes[i].set(func(n *node) { n.stopped = time.Now().Add(long) })
					}
				}
				if owned < 1000 {
					t.Errorf("the address was owned for %d steps only", owned)
				}
				for _, n := range nodes {
					n.leave()
				}
				a.requests.Wait()
			})
		})
	}
}

func TestTimes(t *testing.T) {
	s, delay := time.Second, 1500*time.Millisecond
	for name, test := range map[string]struct {
		lease time.Duration
		want  Times // zero: it is refused
	}{
		"default":           {6 * s, Default},
		"short":             {3 * s, Times{3 * s, s, s / 4}},
		"kube's":            {15 * s, Times{15 * s, 13 * s, 13 * s / 4}},
		"too short":         {2 * s, Times{}},
		"no lease":          {0, Times{}},
		"parts of a second": {6500 * time.Millisecond, Times{}},
		"a day":             {24 * time.Hour, Times{}},
	} {
		t.Run(name, func(t *testing.T) {
			if err := CheckDuration(test.lease); (err != nil) != (test.want == Times{}) {
				t.Fatalf("got %v", err)
			}
			if got := TimesFor(test.lease, delay); test.want != (Times{}) && got != test.want {
				t.Errorf("got %+v, want %+v", got, test.want)
			}
		})
	}
}
