package admission_test

import (
	"runtime/debug"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tinkerbell/stack/pkg/proxy/admission"
)

// lagging is a container in which the memory of an evicted connection is free some time after the eviction.
type lagging struct{ gone atomic.Int64 }

const (
	laggingEach = 144 << 10
	laggingAll  = 1000
)

func (*lagging) Limit() int64 { return 256 << 20 }

func (l *lagging) Used() (int64, error) { return 35<<20 + laggingEach*(laggingAll-l.gone.Load()), nil }

// Memory of evicted connections comes back after a while, and as long no others are evicted for it.
func TestEvictsOnceForWhatIsTooMuch(t *testing.T) {
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(-1))
	synctest.Test(t, func(t *testing.T) {
		a := admission.New(admission.Limits{Memory: 122 << 20, Descriptors: 1 << 20}, nil)
		r, l := a.Route("files"), &lagging{}
		var all []*connection
		for n := range laggingAll { // 66 % are 169 MiB, and they use 175.6
			some, why := open(t, r, address(n), 1, admission.Cost{Memory: 40 << 10})
			if why != admission.Admitted {
				t.Fatal(why)
			}
			all = append(all, some...)
		}
		kept(t, a, l)
		const step, lag = 5 * time.Millisecond, 10 // steps
		var before []int
		for range 200 {
			time.Sleep(step)
			if before = append(before, evicted(all)); len(before) > lag {
				l.gone.Store(int64(before[len(before)-1-lag]))
			}
		}
		if n := evicted(all); n < 40 || n > 80 {
			t.Errorf("%d of %d were evicted, and 47 use what is too much", n, laggingAll)
		}
	})
}

// Large buffers are taken back before a connection is evicted, the download's that has them no less than others.
func TestPressureTakesBuffersBeforeConnections(t *testing.T) {
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(-1))
	synctest.Test(t, func(t *testing.T) {
		a := admission.New(admission.Limits{Memory: 122 << 20, Descriptors: 1 << 20}, nil)
		r, g := a.Route("files"), &gauge{}
		var all []*connection
		for n := range 100 {
			some, _ := open(t, r, address(n), 1, admission.Cost{Memory: 40 << 10})
			all = append(all, some...)
		}
		g.used.Store(100 << 20)
		kept(t, a, g)
		time.Sleep(time.Second)
		loan := admission.Loan{}
		if fit := all[0].Lend(&loan, 8<<20); fit != 1 {
			t.Fatal("a download gets no large buffers")
		}
		g.used.Store(g.Limit()/100*66 + 3<<20)
		time.Sleep(50 * time.Millisecond)
		g.used.Store(100 << 20)
		time.Sleep(time.Second)
		if n := evicted(all); n > 0 {
			t.Errorf("%d connections were evicted, and the buffers would have done", n)
		}
	})
}
