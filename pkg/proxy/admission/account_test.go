package admission_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"math"
	"net/netip"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/tinkerbell/stack/internal/testclock"
	"github.com/tinkerbell/stack/pkg/proxy/admission"
)

// connection is a holder.
type connection struct {
	admission.Charge
	evicted atomic.Bool
}

func (c *connection) Evict() { c.evicted.Store(true) }

func address(n int) netip.Addr { return netip.AddrFrom4([4]byte{192, 0, byte(n >> 8), byte(n)}) }

// open admits n connections of a client.
func open(t *testing.T, r *admission.Charges, from netip.Addr, n int, cost admission.Cost) (all []*connection, last admission.Refusal) {
	t.Helper()
	for range n {
		c := &connection{}
		if last = r.Admit(&c.Charge, c, from, cost); last != admission.Admitted {
			return all, last
		}
		all = append(all, c)
	}
	return all, last
}

func evicted(all []*connection) (n int) {
	for _, c := range all {
		if c.evicted.Load() {
			n++
		}
	}
	return n
}

var one = admission.Cost{Memory: 1}

// The clients with much make room for those with little, and for nobody else.
func TestClientsWithLittleGetIn(t *testing.T) {
	a := admission.New(admission.Limits{Memory: 1000, Descriptors: 1000}, nil)
	r := a.Route("web")
	var greedy []*connection
	for n := range 10 {
		some, why := open(t, r, address(n), 100, one)
		if why != admission.Admitted {
			t.Fatal(why)
		}
		greedy = append(greedy, some...)
	}
	for n := range 50 {
		if _, why := open(t, r, address(100+n), 1, one); why != admission.Admitted {
			t.Fatalf("client %d with nothing: %s", n, why)
		}
	}
	if n := evicted(greedy); n != 50 {
		t.Errorf("%d were given up for 50", n)
	}
	if _, why := open(t, r, address(3), 1000, one); why != admission.Memory {
		t.Errorf("a client with much gets more: %s", why)
	}
	for _, c := range greedy {
		c.Release()
		c.Release()
	}
	if _, why := open(t, r, address(200), 500, one); why != admission.Admitted {
		t.Errorf("what was given back is not there: %s", why)
	}
}

func TestClientHasHalf(t *testing.T) {
	a := admission.New(admission.Limits{Memory: 1000, Descriptors: 1000}, nil)
	all, why := open(t, a.Route("web"), address(1), 1000, one)
	if len(all) != 500 || why != admission.ClientShare {
		t.Errorf("%d connections, then %s", len(all), why)
	}
	if why := all[0].Grow(1); why != admission.ClientShare {
		t.Errorf("one grows: %s", why)
	}
}

// A descriptor counts as its share of the memory, so that either can be short.
func TestDescriptors(t *testing.T) {
	a := admission.New(admission.Limits{Memory: 1 << 20, Descriptors: 100}, nil)
	r := a.Route("web")
	for n := range 50 {
		if _, why := open(t, r, address(n), 1, admission.Cost{Memory: 10, Descriptors: 2}); why != admission.Admitted {
			t.Fatalf("connection %d: %s", n, why)
		}
	}
	if _, why := open(t, r, address(50), 1, admission.Cost{Memory: 10, Descriptors: 2}); why != admission.Descriptors {
		t.Errorf("got %s", why)
	}
}

// Of a client's connections, the one that has been without progress for longest goes; the one for which another of the
// same client goes has to be stale.
func TestLongestWithoutProgressGoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		a := admission.New(admission.Limits{Memory: 8, Descriptors: 8}, nil)
		done := make(chan struct{})
		go func() { a.Run(ctx, nil); close(done) }()
		defer func() { cancel(); <-done }()
		r := a.Route("web")
		var all []*connection
		for range 4 {
			some, _ := open(t, r, address(1), 1, one)
			all = append(all, some...)
			time.Sleep(time.Second / 4)
		}
		if _, why := open(t, r, address(1), 1, one); why != admission.ClientShare {
			t.Errorf("a fifth, while all are fresh: %s", why)
		}
		time.Sleep(3 * time.Second)
		for _, i := range []int{0, 1, 3} {
			all[i].Touch()
		}
		if _, why := open(t, r, address(1), 1, one); why != admission.Admitted {
			t.Errorf("a fifth, while one is stale: %s", why)
		}
		var gone []bool
		for _, c := range all {
			gone = append(gone, c.evicted.Load())
		}
		if diff := cmp.Diff([]bool{false, false, true, false}, gone); diff != "" {
			t.Error(diff)
		}
		if all[2].Grow(1) != admission.Memory || all[2].Move(address(9)) != admission.Memory {
			t.Error("what is given up grows")
		}
		all[2].Shrink(1)
		all[2].Release()
	})
}

func TestGrowAndMove(t *testing.T) {
	a := admission.New(admission.Limits{Memory: 100, Descriptors: 100}, nil)
	r := a.Route("web")
	all, _ := open(t, r, address(1), 2, admission.Cost{Memory: 10})
	if why := all[0].Grow(30); why != admission.Admitted {
		t.Error(why)
	}
	if why := all[0].Grow(1); why != admission.ClientShare {
		t.Errorf("beyond half: %s", why)
	}
	if why := all[0].Move(address(1)); why != admission.Admitted {
		t.Error(why)
	}
	if why := all[0].Move(address(2)); why != admission.Admitted {
		t.Error(why)
	}
	if why := all[1].Grow(40); why != admission.Admitted {
		t.Errorf("the first one is another's now: %s", why)
	}
	all[1].Shrink(1000)
	all[0].Release()
	if _, why := open(t, r, address(3), 50, one); why != admission.Admitted {
		t.Error(why)
	}
}

// IPv6 clients are counted by /64.
func TestClientIsAPrefix(t *testing.T) {
	a := admission.New(admission.Limits{Memory: 100, Descriptors: 100}, nil)
	r := a.Route("web")
	for n := range 51 {
		_, why := open(t, r, netip.MustParseAddr(fmt.Sprintf("2001:db8::%x", n+1)), 1, one)
		if (why == admission.ClientShare) != (n == 50) {
			t.Fatalf("address %d: %s", n, why)
		}
	}
}

func TestNoAccount(t *testing.T) {
	var a *admission.Account
	c := &connection{}
	if why := a.Route("web").Admit(&c.Charge, c, address(1), one); why != admission.Admitted {
		t.Error(why)
	}
	c.Touch()
	if c.Grow(1) != admission.Admitted || c.Move(address(2)) != admission.Admitted {
		t.Error("refused without an account")
	}
	c.Shrink(1)
	c.Release()
	a.Run(t.Context(), nil)
}

// gauge is a container.
type gauge struct{ used atomic.Int64 }

func (g *gauge) Used() (int64, error) { return g.used.Load(), nil }
func (g *gauge) Limit() int64         { return 1 << 30 }

// Memory that no charge covers is made free: the clients with the most give it, and the room comes back later.
func TestPressure(t *testing.T) {
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(-1))
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		a := admission.New(admission.Limits{Memory: 1000, Descriptors: 1000}, nil)
		r := a.Route("web")
		greedy, _ := open(t, r, address(1), 400, one)
		modest, _ := open(t, r, address(2), 10, one)
		g := &gauge{}
		g.used.Store(1 << 29)
		done := make(chan struct{})
		go func() { a.Run(ctx, g); close(done) }()
		defer func() { cancel(); <-done }()
		time.Sleep(time.Second)
		if n := evicted(greedy); n > 0 {
			t.Errorf("%d were given up without need", n)
		}
		g.used.Store(1 << 30)
		time.Sleep(2 * time.Second)
		if n := evicted(greedy); n < 300 {
			t.Errorf("%d of 400 were given up", n)
		}
		if n := evicted(modest); n > 0 {
			t.Errorf("%d of the modest client's were given up", n)
		}
		all, why := open(t, r, address(3), 100, one)
		if why != admission.Memory || len(all) == 0 {
			t.Errorf("a newcomer has %d while the container is full, then %s", len(all), why)
		}
		g.used.Store(1 << 20)
		time.Sleep(time.Minute)
		if _, why := open(t, r, address(4), 450, one); why != admission.Admitted {
			t.Errorf("the room does not come back: %s", why)
		}
	})
	if debug.SetMemoryLimit(-1) == math.MaxInt64 {
		t.Error("Go's limit was not lowered")
	}
}

// While the container is full, a machine that holds a stream to one service gets in at the others, once each.
func TestStreamOfOneRouteIsNoneOfAnother(t *testing.T) {
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(-1))
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		a := admission.New(admission.Limits{Memory: 1000, Descriptors: 1000}, nil)
		streams, files := a.Route("tink"), a.Route("files")
		for n := range 100 { // each has as little as the machine
			open(t, files, address(100+n), 1, one)
		}
		machine := address(1)
		open(t, streams, machine, 1, one)
		g := &gauge{}
		g.used.Store(g.Limit() / 100 * 66)
		done := make(chan struct{})
		go func() { a.Run(ctx, g); close(done) }()
		defer func() { cancel(); <-done }()
		time.Sleep(time.Second)
		if _, why := open(t, streams, machine, 1, one); why != admission.Memory {
			t.Errorf("a second stream: %s", why)
		}
		if _, why := open(t, files, machine, 1, one); why != admission.Admitted {
			t.Errorf("a first file: %s", why)
		}
		if _, why := open(t, files, machine, 1, one); why != admission.Memory {
			t.Errorf("a second file: %s", why)
		}
	})
}

// The line about a route names the largest client of that route, not one that has more at another.
func TestLineNamesTheRoutesOwnClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var text bytes.Buffer
		a := admission.New(admission.Limits{Memory: 1000, Descriptors: 1000}, slog.New(slog.NewTextHandler(&text, nil)))
		open(t, a.Route("files"), address(1), 450, one)
		open(t, a.Route("tink"), address(2), 10, one)
		open(t, a.Route("tink"), address(2), 1, admission.Cost{Memory: 1000}) // refused
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { a.Run(ctx, nil); close(done) }()
		time.Sleep(time.Second)
		cancel()
		<-done
		if want := "route=tink given_up=0 refused=1 largest_client=" + address(2).String(); !strings.Contains(text.String(), want) {
			t.Errorf("no %q in %s", want, text.String())
		}
	})
}

// All at once, for the race detector: what is used is what is held in the end.
func TestConcurrently(t *testing.T) {
	a := admission.New(admission.Limits{Memory: 500, Descriptors: 500}, nil)
	var group sync.WaitGroup
	for n := range 8 {
		group.Go(func() {
			r := a.Route(fmt.Sprint("route", n%2))
			for i := range 2000 {
				c := &connection{}
				if r.Admit(&c.Charge, c, address(n*i%50), one) != admission.Admitted {
					continue
				}
				c.Touch()
				c.Grow(3)
				c.Move(address(i % 7))
				c.Shrink(2)
				c.Release()
			}
		})
	}
	group.Wait()
	for n := range 2 {
		if all, why := open(t, a.Route(fmt.Sprint("route", n)), address(1000+n), 250, one); len(all) != 250 {
			t.Errorf("only %d fit: %s", len(all), why)
		}
	}
}

// What a connection costs, with room and while every one takes another's place.
func BenchmarkAdmit(b *testing.B) {
	for name, held := range map[string]int{"room": 1000, "full": 4999} {
		b.Run(name, func(b *testing.B) {
			a := admission.New(admission.Limits{Memory: 5000, Descriptors: 5000}, nil)
			r := a.Route("web")
			holders := make([]connection, held)
			for i := range holders {
				r.Admit(&holders[i].Charge, &holders[i], address(i%64), one)
			}
			ring := make([]connection, 64)
			b.ReportAllocs()
			n := 0
			for b.Loop() {
				c := &ring[n%len(ring)]
				c.Release()
				c.Touch()
				r.Admit(&c.Charge, c, address(100+n%64), one)
				n++
			}
		})
	}
}

// A route that has gone is forgotten, unless something of it is still open.
func TestForget(t *testing.T) {
	a := admission.New(admission.Limits{Memory: 1000, Descriptors: 1000}, nil)
	var c connection
	client := netip.MustParseAddr("192.0.2.1")
	if why := a.Route("gone").Admit(&c.Charge, &c, client, admission.Cost{Memory: 100}); why != admission.Admitted {
		t.Fatal(why)
	}
	a.Route("stays")
	for _, want := range []int{2, 1} {
		a.Forget("gone")
		if n := testutil.CollectAndCount(a, "stack_proxy_admission_used_bytes"); n != want {
			t.Errorf("%d routes are counted, want %d", n, want)
		}
		c.Release()
	}
	(*admission.Account)(nil).Forget("none")
}

// A clock that is set back makes no connection look as if it had just had progress.
func TestClockSetBackKeepsNoIdleConnection(t *testing.T) {
	testclock.Add(t, 0)
	a := admission.New(admission.Limits{Memory: 8, Descriptors: 8}, nil)
	kept(t, a, nil)
	time.Sleep(time.Second) // the account has its time of the keeper
	r := a.Route("web")
	all, _ := open(t, r, address(1), 4, one)
	testclock.Add(t, -time.Hour)
	time.Sleep(4 * time.Second)
	if _, why := open(t, r, address(1), 1, one); why != admission.Admitted || evicted(all) != 1 {
		t.Errorf("a newcomer behind four idle ones: %s, %d of them were evicted", why, evicted(all))
	}
}
