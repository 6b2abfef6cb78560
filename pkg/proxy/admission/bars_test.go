package admission

import (
	"net/netip"
	"testing"
	"time"
)

// A client that is refused again as soon as it can be waits for twice as long, up to a bound; one that was not refused
// for as long as it had to wait begins anew.
func TestBars(t *testing.T) {
	addr, other := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	var b bars
	now := time.Hour
	for _, step := range []struct {
		pause time.Duration // behind the end of the last bar
		want  time.Duration
	}{
		{0, time.Second},
		{0, 2 * time.Second},
		{time.Second, 4 * time.Second},
		{0, 8 * time.Second},
		{7 * time.Second, 8 * time.Second},
		{8 * time.Second, time.Second},
		{time.Minute, time.Second},
	} {
		now += step.pause
		b.add(addr, int64(now))
		b.add(addr, int64(now+step.want/2)) // it makes no difference while it lasts
		if !b.hold(addr, int64(now+step.want-1)) || b.hold(addr, int64(now+step.want)) {
			t.Errorf("%v behind the last: %+v, want %v", step.pause, b[addr], step.want)
		}
		if b.hold(other, int64(now)) {
			t.Error("another client is barred")
		}
		now += step.want
	}
	b.sweep(int64(now))
	if len(b) != 1 {
		t.Error("a bar was forgotten too early")
	}
	b.sweep(int64(now + barTime))
	if len(b) != 0 {
		t.Error("an old bar is remembered")
	}
}

// A clock that is set back by an hour bars nobody for an hour.
func TestBarsWhenTheClockIsSetBack(t *testing.T) {
	addr := netip.MustParseAddr("192.0.2.1")
	var b bars
	b.add(addr, int64(2*time.Hour))
	now := int64(time.Hour)
	if b.hold(addr, now) {
		t.Error("the client is barred")
	}
	if b.add(addr, now); !b.hold(addr, now) || b.hold(addr, now+int64(barTime)) {
		t.Errorf("refused again: %+v", b[addr])
	}
	b.add(netip.MustParseAddr("192.0.2.2"), int64(2*time.Hour))
	if b.sweep(now); len(b) != 1 {
		t.Errorf("%d are remembered, want 1", len(b))
	}
}

// However many clients are refused, what is remembered of them is bounded; bars that are over make room.
func TestBarsAreBounded(t *testing.T) {
	var b bars
	address := func(n int) netip.Addr { return netip.AddrFrom4([4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)}) }
	for n := range 2 * mostBars {
		b.add(address(n), 1)
	}
	if len(b) != mostBars {
		t.Errorf("%d are remembered, want %d", len(b), mostBars)
	}
	later := int64(time.Minute)
	b.sweep(later)
	b.add(address(3*mostBars), later)
	if len(b) != 1 || !b.hold(address(3*mostBars), later) {
		t.Errorf("%d are remembered, want the last", len(b))
	}
}
