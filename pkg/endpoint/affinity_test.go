package endpoint

import (
	"net/netip"
	"testing"
	"testing/synctest"
	"time"
)

// stay is how long affine pools remember.
const stay = time.Hour

func affinePool(before *Pool, addrs ...netip.AddrPort) *Pool {
	return NewPool(Config{Route: "r", Sources: []Source{Fixed(addrs...)}, Affinity: stay, Before: before})
}

func pick(t *testing.T, p *Pool, from netip.Addr) netip.AddrPort {
	t.Helper()
	addr, err := p.Pick(from)
	if err != nil {
		t.Fatal(err)
	}
	return addr
}

// A client meets its endpoint for the time since its last connection, and is balanced anew behind that.
func TestAffinityLasts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := affinePool(nil, at(0), at(1), at(2))
		first := pick(t, p, client(1))
		for i := range 30 {
			time.Sleep(stay - time.Second)
			pick(t, p, client(100+i)) // round robin goes on for others
			if got := pick(t, p, client(1)); got != first {
				t.Fatalf("visit %d: got %s, want %s", i, got, first)
			}
		}
		if got := pick(t, p, netip.AddrFrom16(client(1).As16())); got != first {
			t.Errorf("IPv4 in IPv6: got %s, want %s", got, first)
		}
		seen := map[netip.AddrPort]bool{}
		for range 3 {
			time.Sleep(stay)
			seen[pick(t, p, client(1))] = true
		}
		if len(seen) != 3 {
			t.Errorf("a client that was away for long met %d endpoints of 3", len(seen))
		}
		if n := len(p.affinity.clients); n != 1 || p.affinity.visits.Len() != n {
			t.Errorf("%d clients are remembered, want 1", n)
		}
	})
}

// An endpoint that is gone, or was tried in vain, serves its clients no more; the others' stay where they are, also in
// the pool that takes the first one's place.
func TestAffinityMovesThoseWhoseEndpointIsGone(t *testing.T) {
	p := affinePool(nil, at(0), at(1), at(2))
	before := map[int]netip.AddrPort{}
	for i := range 30 {
		before[i] = pick(t, p, client(i))
	}
	next := affinePool(p, at(0), at(2))
	moved := 0
	for i, was := range before {
		switch got := pick(t, next, client(i)); {
		case was == at(1):
			moved++
			if again := pick(t, next, client(i)); again != got {
				t.Errorf("client %d: %s, then %s", i, got, again)
			}
		case got != was:
			t.Errorf("client %d was moved from %s to %s", i, was, got)
		}
	}
	if moved != 10 {
		t.Errorf("%d clients had the endpoint that is gone, want 10", moved)
	}
	first, err := next.Acquire(client(500))
	if err != nil {
		t.Fatal(err)
	}
	second, err := next.Acquire(client(500), first)
	if err != nil || second == first {
		t.Fatalf("got %v, %v", second, err)
	}
	if third, _ := next.Acquire(client(500)); third != second {
		t.Errorf("the client is back at %s, which it tried in vain", first.Addr)
	}
}

// However many clients there are, so many are remembered: those that came last.
func TestAffinityIsBounded(t *testing.T) {
	p := affinePool(nil, at(0), at(1))
	from := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}) }
	for i := range maxAffinity + 1000 {
		pick(t, p, from(i))
	}
	if n := len(p.affinity.clients); n != maxAffinity || p.affinity.visits.Len() != n {
		t.Errorf("%d clients are remembered in %d visits, want %d", n, p.affinity.visits.Len(), maxAffinity)
	}
	if p.affinity.clients[from(999)] != nil || p.affinity.clients[from(1000)] == nil {
		t.Error("others were forgotten than those that came first")
	}
}

// Without affinity a pick allocates nothing, and nothing is remembered.
func TestNoAffinityCostsNothing(t *testing.T) {
	p := fixedPool(3, RoundRobin, Health{})
	from := client(1)
	if n := testing.AllocsPerRun(1000, func() { _, _ = p.Pick(from) }); n != 0 || p.affinity != nil {
		t.Errorf("%v allocations for each pick", n)
	}
}
