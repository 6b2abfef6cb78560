package feed

import (
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
		relay, proxy := boot.NewQueue(16), boot.NewQueue(16)
		m := NewMerger(h.event, func(time.Time) { ticks.Add(1) }, relay, proxy)
		stop := run(t, m)
		time.Sleep(settle)
		synctest.Wait()
		ticks.Store(0)
		begin := time.Now()
		proxy.Put(at(2, begin.Add(2*time.Millisecond)))
		proxy.Put(at(3, begin.Add(3*time.Millisecond)))
		time.Sleep(PollEvery + 20*time.Millisecond)
		relay.Put(at(1, begin.Add(time.Millisecond)))
		proxy.Put(at(4, begin.Add(3*time.Millisecond)))
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
		relay.Put(at(6, time.Now()))
		proxy.Put(at(5, time.Now().Add(-time.Millisecond)))
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
		relay, proxy := boot.NewQueue(16), boot.NewQueue(16)
		run(t, NewMerger(h.event, func(time.Time) {}, relay, proxy))
		kept := time.Now().Add(-10 * time.Second)
		proxy.Put(at(2, kept.Add(time.Second)))
		time.Sleep(settle / 2)
		relay.Put(at(1, kept))
		time.Sleep(settle)
		synctest.Wait()
		if diff := cmp.Diff([]uint32{1, 2}, h.all()); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}

// TestMergerIsBounded: a flood of events of the future is recorded early, in order, and none is lost.
func TestMergerIsBounded(t *testing.T) {
	var got []uint32
	q := boot.NewQueue(64)
	m := NewMerger(func(e *boot.Event) { got = append(got, e.XID) }, func(time.Time) {}, q)
	const most = 3*heldMost + 10
	for xid := range uint32(most) {
		q.Put(at(xid, time.Unix(1<<33, int64(xid))))
		if xid%64 == 63 {
			m.collect()
			m.release(0)
		}
	}
	m.collect()
	m.release(1<<63 - 1)
	if len(got) != most || len(m.free) != heldMost || len(m.order) != 0 {
		t.Errorf("recorded %d of %d; %d places are free, %d wait", len(got), most, len(m.free), len(m.order))
	}
	for i, xid := range got {
		if xid != uint32(i) {
			t.Fatalf("event %d is %d", i, xid)
		}
	}
}

// TestFloodedQueueCostsOthersNothing: each source has room of its own.
func TestFloodedQueueCostsOthersNothing(t *testing.T) {
	recorded := map[uint32]int{}
	flooded, quiet := boot.NewQueue(1024), boot.NewQueue(16)
	m := NewMerger(func(e *boot.Event) { recorded[e.XID]++ }, func(time.Time) {}, flooded, quiet)
	for range 100 {
		for range 5000 {
			flooded.Put(at(1, time.Unix(1, 0)))
		}
		quiet.Put(at(2, time.Unix(1, 0)))
		m.collect()
		m.release(1<<63 - 1)
	}
	if recorded[2] != 100 || flooded.Dropped() == 0 || quiet.Dropped() != 0 || recorded[1]+int(flooded.Dropped()) != 500_000 {
		t.Errorf("recorded %v, dropped %d and %d", recorded, flooded.Dropped(), quiet.Dropped())
	}
}

// BenchmarkMerge is an event on its way from a queue to the recorder.
func BenchmarkMerge(b *testing.B) {
	q := boot.NewQueue(4096)
	m := NewMerger(func(*boot.Event) {}, func(time.Time) {}, q)
	e := discover(1)
	b.ReportAllocs()
	for n := int64(0); b.Loop(); n++ {
		e.At = n ^ 7 // a little out of order
		q.Put(e)
		if n%1024 == 1023 {
			m.collect()
			m.release(n - 2500)
		}
	}
}
