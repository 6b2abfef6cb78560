package admission_test

import (
	"context"
	"runtime/debug"
	"sync"
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
func TestBurstFindsRoom(t *testing.T) {
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(-1))
	synctest.Test(t, func(t *testing.T) {
		a := admission.New(admission.Limits{Memory: 1 << 29, Descriptors: 1 << 20}, nil)
		r, cost, g := a.Route("web"), admission.Cost{Memory: 72 << 10}, &gauge{}
		g.used.Store(1 << 29)
		kept(t, a, g)
		time.Sleep(time.Second)
		var all []*connection
		for n := range 1000 {
			c := &connection{}
			all = append(all, c)
			if why := r.Admit(&c.Charge, c, address(1), cost); why != admission.Admitted {
				t.Fatalf("connection %d: %s", n, why)
			}
		}
		g.used.Store(1 << 30)
		time.Sleep(time.Second)
		for _, c := range all {
			c.Release()
		}
	})
}

// Large buffers take nothing from others, nor more than a part, and all streams have the same of it.
func TestLargeBuffersTakeNothing(t *testing.T) {
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(-1))
	synctest.Test(t, func(t *testing.T) {
		a := admission.New(admission.Limits{Memory: 1000, Descriptors: 1000}, nil)
		r := a.Route("web")
		sizes := []int64{10, 40, 200}
		var all []*connection
		loans := make([]admission.Loan, 9)
		ask := func(want ...int) {
			t.Helper()
			for i := range want { // the first may have to make way for the last
				all[i].Lend(&loans[i], sizes...)
			}
			for i, size := range want {
				if fit := all[i].Lend(&loans[i], sizes...); fit != size {
					t.Errorf("connection %d of %d has size %d, want %d", i, len(want), fit, size)
				}
			}
		}
		for n := range loans { // each takes 1 for itself
			some, _ := open(t, r, address(n), 1, one)
			all = append(all, some...)
		}
		ask(3)
		ask(2, 2)
		ask(2, 2, 2, 2, 2, 2)
		ask(1, 1, 1, 1, 1, 1, 1)
		for i := 1; i < len(all); i++ {
			all[i].Lend(&loans[i])
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
		if all[0].Lend(&loans[0], sizes...) != 0 || evicted(all) > 0 {
			t.Error("the container's memory is short")
		}
	})
}

// In the first moments of a flood a machine's running download has large buffers, while each attacker has little: the
// download is not given up for what it has of them.
func TestRunningDownloadIsNotGivenUp(t *testing.T) {
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(-1))
	sizes := []int64{640 << 10, 2 << 20, 8 << 20}
	connect := admission.Cost{Memory: 24 << 10, Descriptors: 2}
	synctest.Test(t, func(t *testing.T) {
		a := admission.New(admission.Limits{Memory: 122 << 20, Descriptors: 1 << 20}, nil)
		files, web := a.Route("files"), a.Route("web")
		for n := range 4 {
			a.Route(string(rune('a' + n)))
		}
		all, _ := open(t, files, address(200), 1, connect)
		download, loan := all[0], admission.Loan{}
		if fit := download.Lend(&loan, sizes...); fit != len(sizes) {
			t.Fatalf("size %d fits in an empty container", fit)
		}
		g := &gauge{}
		g.used.Store(g.Limit() / 100 * 50)
		kept(t, a, g)
		time.Sleep(time.Second)
		download.Touch()
		var flood []*connection
		for n := range 2000 {
			c := &connection{}
			if web.Admit(&c.Charge, c, address(n%64), connect) == admission.Admitted &&
				c.Grow(240<<10) == admission.Admitted {
				flood = append(flood, c)
			}
			if n%100 == 99 {
				time.Sleep(20 * time.Millisecond)
			}
		}
		if len(flood) < 100 {
			t.Fatalf("the flood has %d connections", len(flood))
		}
		if download.evicted.Load() {
			t.Error("the download was given up")
		}
	})
}

// A client of which a request was refused opens no connections for a while, so that it does not keep the processor busy
// with requests to refuse. Others do, and it does later.
func TestRefusedClientOpensNoConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := admission.New(admission.Limits{Memory: 1000, Descriptors: 1000}, nil)
		kept(t, a, nil)
		r, cost := a.Route("web"), admission.Cost{Memory: 10, Descriptors: 1}
		admit := func(client int, cost admission.Cost) admission.Refusal {
			c := &connection{}
			return r.Admit(&c.Charge, c, address(client), cost)
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
		time.Sleep(10 * time.Second)
		if why := admit(1, cost); why != admission.Admitted {
			t.Errorf("ten seconds later: %s", why)
		}
	})
}

// measured is a container in which each charged byte stands for several that are used. Only the test sets all, with
// set, and may read it as it is; the keeper reads it meanwhile.
type measured struct {
	mu          sync.Mutex
	all         []*connection
	limit, idle int64
	each        int64 // what a connection uses
}

func (m *measured) Limit() int64 { return m.limit }

func (m *measured) set(all []*connection) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.all = all
}

func (m *measured) Used() (int64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.idle + m.each*int64(len(m.all)-evicted(m.all)), nil
}

// A charge stands for several times its bytes, above all for the kernel's buffers. Where a little too much is used, a
// few connections go, and not as many as would be charged with several times the excess.
func TestShedsInProportion(t *testing.T) {
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(-1))
	synctest.Test(t, func(t *testing.T) {
		a := admission.New(admission.Limits{Memory: 122 << 20, Descriptors: 1 << 20}, nil)
		r, m := a.Route("files"), &measured{limit: 256 << 20, idle: 35 << 20, each: 144 << 10}
		for n := range 1000 { // 66 % are 169 MiB, and they use 175.6
			some, why := open(t, r, address(n), 1, admission.Cost{Memory: 40 << 10})
			if why != admission.Admitted {
				t.Fatal(why)
			}
			m.set(append(m.all, some...))
		}
		kept(t, a, m)
		for range 100 {
			time.Sleep(100 * time.Millisecond)
			for _, c := range m.all {
				if c.evicted.Load() {
					c.Release()
				}
			}
		}
		if n := evicted(m.all); n < 40 || n > 80 {
			t.Errorf("%d of 1000 were evicted, and 47 use what is too much", n)
		}
	})
}

// One connection, or a few, get large buffers also in the chart's container; many share what there is.
func TestLargeBuffersInSmallContainer(t *testing.T) {
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(-1))
	sizes := []int64{640 << 10, 2 << 20, 8 << 20}
	for n, fit := range map[int]int{1: 3, 4: 2, 16: 1, 200: 0} {
		synctest.Test(t, func(t *testing.T) {
			a := admission.New(admission.Limits{Memory: 122 << 20, Descriptors: 1 << 20}, nil)
			r, m := a.Route("tcp"), &measured{limit: 256 << 20, idle: 40 << 20}
			loans := make([]admission.Loan, n)
			for i := range n {
				some, _ := open(t, r, address(i), 1, admission.Cost{Memory: 20 << 10})
				m.set(append(m.all, some...))
			}
			kept(t, a, m)
			time.Sleep(time.Second)
			if r.SmallBuffers() {
				t.Errorf("%d connections have to begin with small buffers", n)
			}
			for range 50 {
				time.Sleep(50 * time.Millisecond)
				for i, c := range m.all {
					c.Touch()
					c.Lend(&loans[i], sizes...)
				}
			}
			for i, c := range m.all {
				if got := c.Lend(&loans[i], sizes...); got != fit {
					t.Fatalf("connection %d of %d has size %d, want %d", i, n, got, fit)
				}
			}
		})
	}
}

// Where little is left of the memory, as when files in tmpfs have the rest, machines that load one small file after the
// other are served.
func TestLittleMemoryServesOneAfterTheOther(t *testing.T) {
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(-1))
	synctest.Test(t, func(t *testing.T) {
		a := admission.New(admission.Limits{Memory: 122 << 20, Descriptors: 1 << 20}, nil)
		r, m := a.Route("files"), &measured{limit: 256 << 20, idle: 230 << 20}
		kept(t, a, m)
		time.Sleep(time.Second)
		for n := range 50 {
			some, why := open(t, r, address(1), 1, admission.Cost{Memory: 40 << 10, Descriptors: 2})
			if why != admission.Admitted {
				t.Fatalf("connection %d: %s", n, why)
			}
			time.Sleep(500 * time.Millisecond)
			if evicted(some) > 0 {
				t.Fatalf("connection %d was given up", n)
			}
			some[0].Release()
		}
	})
}

// What a flood takes from a download in bulk comes back: once the attackers have left, it has large buffers as before.
func TestLargeBuffersAreBackAfterAFlood(t *testing.T) {
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(-1))
	sizes := []int64{640 << 10, 2 << 20, 8 << 20}
	synctest.Test(t, func(t *testing.T) {
		a := admission.New(admission.Limits{Memory: 122 << 20, Descriptors: 1 << 20}, nil)
		r, m := a.Route("tcp"), &measured{limit: 256 << 20, idle: 40 << 20, each: 144 << 10}
		kept(t, a, m)
		bulk := func(want bool) {
			t.Helper()
			some, why := open(t, r, address(9999), 1, admission.Cost{Memory: 20 << 10})
			if why != admission.Admitted {
				t.Fatal(why)
			}
			loan := admission.Loan{}
			for range 20 {
				some[0].Touch()
				some[0].Lend(&loan, sizes...)
				time.Sleep(50 * time.Millisecond)
			}
			fit := some[0].Lend(&loan, sizes...)
			if (fit == len(sizes)) != want || r.SmallBuffers() == want || evicted(some) > 0 {
				t.Errorf("size %d fits, small: %v, given up: %d", fit, r.SmallBuffers(), evicted(some))
			}
			some[0].Release()
		}
		bulk(true)
		for n := range 10_000 {
			c := &connection{}
			if r.Admit(&c.Charge, c, address(n%20), admission.Cost{Memory: 40 << 10}) == admission.Admitted {
				m.set(append(m.all, c))
			}
			if n%100 == 99 {
				time.Sleep(20 * time.Millisecond)
			}
		}
		bulk(false)
		for _, c := range m.all {
			c.Release()
		}
		m.set(nil)
		time.Sleep(time.Minute)
		bulk(true)
	})
}

// Machines that load while newcomers come lose nothing to them, however many come, where all have as much.
func TestNewcomersTakeNothingOfThoseWhoLoad(t *testing.T) {
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(-1))
	synctest.Test(t, func(t *testing.T) {
		a := admission.New(admission.Limits{Memory: 700 * 40 << 10, Descriptors: 1 << 20}, nil)
		r, cost := a.Route("files"), admission.Cost{Memory: 40 << 10}
		m := &measured{limit: 256 << 20, idle: 35 << 20, each: 100 << 10}
		for n := range 700 {
			some, why := open(t, r, address(n), 1, cost)
			if why != admission.Admitted {
				t.Fatal(why)
			}
			m.set(append(m.all, some...))
		}
		kept(t, a, m)
		for n := range 300 {
			for _, c := range m.all {
				c.Touch()
			}
			if some, why := open(t, r, address(1000+n), 1, cost); why == admission.Admitted {
				t.Fatalf("newcomer %d is admitted where all is in use: %d", n, len(some))
			}
			time.Sleep(50 * time.Millisecond)
		}
		if n := evicted(m.all); n > 0 {
			t.Errorf("%d of 700 were given up", n)
		}
		for _, c := range m.all[:300] {
			c.Release()
		}
		m.set(m.all[300:])
		time.Sleep(time.Second)
		for n := range 300 {
			if _, why := open(t, r, address(1000+n), 1, cost); why != admission.Admitted {
				t.Fatalf("newcomer %d, when others have ended: %s", n, why)
			}
		}
	})
}
