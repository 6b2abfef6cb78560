package pending

import (
	"testing"
	"time"
	"unsafe"
)

// key is of the size of the relays' own.
type key struct {
	xid    uint32
	chaddr [16]byte
	hlen   uint8
}

type origin struct{ listener int }

func keyNumber(n int) key {
	return key{xid: uint32(n), chaddr: [16]byte{2, byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n), 1}, hlen: 6}
}

func TestPendingMatchesOnlyWhatWasAsked(t *testing.T) {
	p := New[key, origin](8, time.Second, 1)
	asked := keyNumber(1)
	p.Remember(asked, origin{listener: 3}, 0)
	other := asked
	other.chaddr[5]++
	for name, k := range map[string]key{"another xid": keyNumber(2), "another chaddr": other} {
		if _, _, _, found := p.Match(k, 0); found {
			t.Errorf("%s: matches", name)
		}
	}
	for i, wantFirst := range []bool{true, false, false} {
		o, waited, first, found := p.Match(asked, 500)
		if !found || o.listener != 3 || waited != 500 || first != wantFirst {
			t.Errorf("reply %d: got %+v %d %v %v", i, o, waited, first, found)
		}
	}
}

func TestPendingExpires(t *testing.T) {
	p := New[key, origin](8, time.Second, 1)
	p.Remember(keyNumber(1), origin{}, 0)
	p.Remember(keyNumber(2), origin{}, int64(time.Second))
	if _, _, _, found := p.Match(keyNumber(1), int64(time.Second)+1); found {
		t.Error("an expired request matches")
	}
	if n := p.Sweep(int64(time.Second) + 1); n != 1 {
		t.Errorf("got %d left, want 1", n)
	}
	if n := p.Sweep(int64(2*time.Second) + 1); n != 0 {
		t.Errorf("got %d left, want none", n)
	}
}

// TestPendingIsBounded is the flood of random MACs: the newest requests are known, and nothing grows.
func TestPendingIsBounded(t *testing.T) {
	const size = 1000
	p := New[key, origin](size, time.Hour, 1)
	for i := range 50 * size {
		p.Remember(keyNumber(i), origin{}, int64(i))
		if i%7 == 0 {
			p.Remember(keyNumber(i), origin{}, int64(i)) // a client that repeats itself
		}
	}
	if p.live > size || len(p.entries) != size+1 {
		t.Errorf("got %d live of %d", p.live, len(p.entries))
	}
	for i := 50*size - size/2; i < 50*size; i++ {
		if _, _, _, found := p.Match(keyNumber(i), int64(i)); !found {
			t.Fatalf("request %d of %d is forgotten", i, 50*size)
		}
	}
	if _, _, _, found := p.Match(keyNumber(1), 0); found {
		t.Error("the oldest is still known")
	}
	if n := p.Sweep(int64(2 * time.Hour)); n != 0 {
		t.Errorf("got %d left", n)
	}
	for i, head := range p.buckets {
		if head != 0 {
			t.Fatalf("bucket %d is not empty", i)
		}
	}
}

func TestPendingDoesNotAllocate(t *testing.T) {
	p := New[key, origin](1000, time.Hour, 1)
	n := 0
	if got := testing.AllocsPerRun(5000, func() {
		n++
		p.Remember(keyNumber(n), origin{}, int64(n))
		p.Match(keyNumber(n), int64(n))
	}); got != 0 {
		t.Errorf("got %v allocations per transaction", got)
	}
}

func BenchmarkPending(b *testing.B) {
	p := New[key, origin](32768, time.Hour, 1)
	n := 0
	b.ReportAllocs()
	for b.Loop() {
		n++
		p.Remember(keyNumber(n), origin{}, int64(n))
		p.Match(keyNumber(n), int64(n))
	}
}

// TestEntryIsSmall: a packet takes one entry out of memory that is cold, and there are 32,768 of them.
func TestEntryIsSmall(t *testing.T) {
	if got := unsafe.Sizeof(entry[[24]byte, [40]byte]{}); got > 88 {
		t.Errorf("an entry has %d bytes besides a key of 24 and an origin of 40, want 24", got-24-40)
	}
}
