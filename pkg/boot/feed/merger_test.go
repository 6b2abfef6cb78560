package feed

import (
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tinkerbell/stack/pkg/boot"
)

func at(xid uint32, when time.Time) *boot.Event {
	e := discover(xid)
	e.At = when.UnixNano()
	return e
}

// TestMergerOrders: what dhcp-relay tells comes later by its socket, and is recorded first where it was earlier.
func TestMergerOrders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h heard
		var ticks atomic.Int64
		m := NewMerger(h.event, func(time.Time) { ticks.Add(1) })
		stop := run(t, m)
		time.Sleep(quietStart)
		synctest.Wait()
		ticks.Store(0)
		begin := time.Now()
		m.Event(at(2, begin.Add(2*time.Millisecond)))
		m.Event(at(3, begin.Add(3*time.Millisecond)))
		time.Sleep(PollEvery + 20*time.Millisecond)
		m.Event(at(1, begin.Add(time.Millisecond)))
		m.Event(at(4, begin.Add(3*time.Millisecond)))
		synctest.Wait()
		if got := h.all(); len(got) != 0 {
			t.Errorf("recorded at once: %v", got)
		}
		time.Sleep(Patience + 2*PollEvery)
		synctest.Wait()
		if diff := cmp.Diff([]uint32{1, 2, 3, 4}, h.all()); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		time.Sleep(3 * tickEvery)
		synctest.Wait()
		if n := ticks.Load(); n < 3 || n > 4 {
			t.Errorf("%d ticks in some three seconds", n)
		}
		m.Event(at(6, time.Now()))
		m.Event(at(5, time.Now().Add(-time.Millisecond)))
		stop()
		if diff := cmp.Diff([]uint32{1, 2, 3, 4, 5, 6}, h.all()); diff != "" {
			t.Errorf("at the end (-want +got):\n%s", diff)
		}
	})
}

// TestMergerWaitsAtFirst: programs that come back one after the other, with what they kept, are in order.
func TestMergerWaitsAtFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h heard
		m := NewMerger(h.event, func(time.Time) {})
		run(t, m)
		kept := time.Now().Add(-10 * time.Second)
		m.Event(at(2, kept.Add(time.Second)))
		time.Sleep(quietStart / 2)
		m.Event(at(1, kept))
		time.Sleep(quietStart)
		synctest.Wait()
		if diff := cmp.Diff([]uint32{1, 2}, h.all()); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}

// TestMergerIsBounded: a flood of events of the future is recorded early, in order, and none is lost.
func TestMergerIsBounded(t *testing.T) {
	var got []uint32
	m := NewMerger(func(e *boot.Event) { got = append(got, e.XID) }, func(time.Time) {})
	const most = 3*mostWaiting + 10
	for xid := range uint32(most) {
		m.Event(at(xid, time.Unix(1<<33, int64(xid))))
		m.recordUntil(0)
		if len(m.waiting) > mostWaiting {
			t.Fatalf("%d wait", len(m.waiting))
		}
	}
	m.recordUntil(1<<63 - 1)
	if len(got) != most || len(m.waiting) != 0 {
		t.Errorf("recorded %d of %d; %d wait", len(got), most, len(m.waiting))
	}
	for i, xid := range got {
		if xid != uint32(i) {
			t.Fatalf("event %d is %d", i, xid)
		}
	}
}

// TestFloodCostsOthersNothing: while one program floods, what another one tells is recorded.
func TestFloodCostsOthersNothing(t *testing.T) {
	recorded := map[uint32]int{}
	m := NewMerger(func(e *boot.Event) { recorded[e.XID]++ }, func(time.Time) {})
	var group sync.WaitGroup
	group.Go(func() {
		for range 20 * mostWaiting {
			m.Event(at(1, time.Unix(1, 0)))
		}
	})
	for range 100 {
		m.Event(at(2, time.Unix(1, 0)))
	}
	group.Wait()
	m.recordUntil(1<<63 - 1)
	if recorded[1] != 20*mostWaiting || recorded[2] != 100 {
		t.Errorf("recorded %v", recorded)
	}
}

// BenchmarkMerge is an event on its way to the recorder.
func BenchmarkMerge(b *testing.B) {
	m := NewMerger(func(*boot.Event) {}, func(time.Time) {})
	e := discover(1)
	b.ReportAllocs()
	for n := int64(0); b.Loop(); n++ {
		e.At = n ^ 7 // a little out of order
		m.Event(e)
		if n%1024 == 1023 {
			m.recordUntil(n - 2500)
		}
	}
}
