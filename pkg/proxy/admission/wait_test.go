package admission_test

import (
	"context"
	"runtime"
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

// What a holder can do without takes nothing from others, nor more than a part, and all have the same of it.
func TestSpareTakesNothing(t *testing.T) {
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(-1))
	synctest.Test(t, func(t *testing.T) {
		a := admission.New(admission.Limits{Memory: 1000, Descriptors: 1000}, nil)
		r := a.Route("web")
		sizes := []int64{10, 40, 200}
		var all []*connection
		spares := make([]admission.Spare, 9)
		ask := func(want ...int) {
			t.Helper()
			for i := range want { // the first may have to make way for the last
				all[i].Spare(&spares[i], sizes...)
			}
			for i, size := range want {
				if fit := all[i].Spare(&spares[i], sizes...); fit != size {
					t.Errorf("connection %d of %d has size %d, want %d", i, len(want), fit, size)
				}
			}
		}
		for n := range spares { // each takes 1 for itself
			some, _ := open(t, r, address(n), 1, one)
			all = append(all, some...)
		}
		ask(3)
		ask(2, 2)
		ask(2, 2, 2, 2, 2, 2)
		ask(1, 1, 1, 1, 1, 1, 1)
		for i := 1; i < len(all); i++ {
			all[i].Spare(&spares[i])
		}
		ask(3)
		ask(2, 2)
		all[1].Release()
		ask(3)
		if evicted(all) > 0 {
			t.Error("something was given up")
		}
		g := &gauge{}
		kept(t, a, g)
		g.used.Store((1 << 30) / 100 * 60)
		time.Sleep(time.Second)
		if all[0].Spare(&spares[0], sizes...) != 0 || evicted(all) > 0 {
			t.Error("the container's memory is short")
		}
	})
}

// A client of which a request was refused opens no connections for a second, so that it does not keep the processor busy
// with requests to refuse. Others do, and it does later.
func TestRefusedClientOpensNoConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := admission.New(admission.Limits{Memory: 1000, Descriptors: 1000}, nil)
		kept(t, a, nil)
		r, cost := a.Route("web"), admission.Cost{Memory: 10, Descriptors: 1}
		admit := func(client int, cost admission.Cost) admission.Refusal {
			c := &connection{}
			return r.Admit(&c.Lease, c, address(client), cost)
		}
		for _, step := range []struct {
			client int
			cost   admission.Cost
			want   admission.Refusal
		}{
			{1, cost, admission.Admitted},
			{1, admission.Cost{Memory: 600}, admission.ClientShare}, // a request
			{1, cost, admission.Memory},
			{2, cost, admission.Admitted},
		} {
			if why := admit(step.client, step.cost); why != step.want {
				t.Errorf("client %d, %d bytes: %s, want %s", step.client, step.cost.Memory, why, step.want)
			}
		}
		time.Sleep(2 * time.Second)
		if why := admit(1, cost); why != admission.Admitted {
			t.Errorf("a second later: %s", why)
		}
	})
}

// What Go's collector cannot keep up with is given up, although the container has memory: not below a quarter, so that
// a machine with little is not among those with the most.
func TestCollectorKeepsUp(t *testing.T) {
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(-1))
	synctest.Test(t, func(t *testing.T) {
		a := admission.New(admission.Limits{Memory: 1000, Descriptors: 1000}, nil)
		r := a.Route("web")
		all, _ := open(t, r, address(1), 400, one)
		g := &gauge{}
		g.used.Store(1 << 20)
		kept(t, a, g)
		time.Sleep(time.Second)
		if n := evicted(all); n > 0 {
			t.Fatalf("%d were given up while there was room", n)
		}
		defer runtime.GC() // or the next test would have it too
		heap := make([]byte, g.Limit())
		for left := 100; left > 0 && evicted(all) < 150; left-- {
			for range 10 { // the collector has the processor
				runtime.GC()
			}
			time.Sleep(time.Second)
		}
		runtime.KeepAlive(heap)
		if n := evicted(all); n != 150 {
			t.Errorf("%d of 400 were given up, want 150", n)
		}
	})
}

// While much of what was evicted has not ended, newcomers wait.
func TestNewcomersWaitForThoseWhoLeave(t *testing.T) {
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(-1))
	synctest.Test(t, func(t *testing.T) {
		a := admission.New(admission.Limits{Memory: 1000, Descriptors: 1000}, nil)
		r, cost, g := a.Route("web"), admission.Cost{Memory: 1}, &gauge{}
		all, _ := open(t, r, address(1), 400, one)
		kept(t, a, g)
		time.Sleep(time.Second)
		if r.Held(cost) {
			t.Fatal("newcomers wait, and nobody leaves")
		}
		g.used.Store((1 << 30) / 100 * 90)
		time.Sleep(time.Second)
		g.used.Store(0)
		time.Sleep(time.Second)
		if evicted(all) < 200 || !r.Held(cost) {
			t.Errorf("%d of 400 leave, and newcomers do not wait", evicted(all))
		}
		begun := time.Now()
		if r.Wait(cost); time.Since(begun) == 0 || time.Since(begun) > time.Second {
			t.Errorf("a newcomer waited for %v", time.Since(begun))
		}
		for _, c := range all {
			c.Release()
		}
		if r.Held(cost) {
			t.Error("newcomers wait although those who left have ended")
		}
	})
}
