package admission_test

import (
	"context"
	"runtime/debug"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tinkerbell/stack/pkg/proxy/admission"
)

// kept runs an account's keeper until the test ends.
func kept(t *testing.T, a *admission.Account, g admission.Gauge) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { a.Run(ctx, g); close(done) }()
	t.Cleanup(func() { cancel(); <-done })
}

// A thousand machines behind one address come at the same moment, to a container whose memory is mostly free: nobody is
// refused.
func TestBurstWaitsForRoom(t *testing.T) {
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(-1))
	for name, ask := range map[string]func(*admission.Route, admission.Cost){
		"wait": (*admission.Route).Wait,
		"ask again": func(r *admission.Route, c admission.Cost) {
			for r.Held(c) {
				time.Sleep(admission.HoldTime)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := admission.New(admission.Limits{Memory: 1 << 29, Descriptors: 1 << 20}, nil)
				r, cost, g := a.Route("web"), admission.Cost{Memory: 72 << 10}, &gauge{}
				g.used.Store(1 << 29)
				kept(t, a, g)
				time.Sleep(time.Second)
				for n := range 1000 {
					c := &connection{}
					ask(r, cost)
					if why := r.Admit(&c.Lease, c, address(1), cost); why != admission.Admitted {
						t.Fatalf("connection %d: %s", n, why)
					}
				}
				g.used.Store(1 << 30)
				time.Sleep(time.Second)
				if r.Held(cost) {
					t.Error("newcomers wait where there will be no room")
				}
			})
		})
	}
}

// What a holder can do without takes nothing from others, nor more than a part.
func TestSpareTakesNothing(t *testing.T) {
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(-1))
	synctest.Test(t, func(t *testing.T) {
		a := admission.New(admission.Limits{Memory: 1000, Descriptors: 1000}, nil)
		r := a.Route("web")
		var all []*connection
		for n := range 4 {
			some, _ := open(t, r, address(n), 2, one)
			all = append(all, some...)
			if some[0].Spare(200) != (n == 0) || some[1].Spare(100) {
				t.Errorf("client %d: the first may have 200, and nobody may have more than a quarter of 1000 in all", n)
			}
		}
		modest, _ := open(t, r, address(5), 1, one)
		if modest[0].Spare(240) || evicted(all) > 0 {
			t.Error("there is no room for it")
		}
		all[0].Release()
		if !modest[0].Spare(200) {
			t.Error("there is room for it")
		}
		modest[0].Shrink(200)
		g := &gauge{}
		kept(t, a, g)
		g.used.Store((1 << 30) / 100 * 60)
		time.Sleep(time.Second)
		if modest[0].Spare(1) || evicted(all) > 0 {
			t.Error("the container's memory is short")
		}
	})
}
