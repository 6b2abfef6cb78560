package relay

import "testing"

// TestLimits in one table: each client, all of them, and clients that have no address to tell them apart.
func TestLimits(t *testing.T) {
	const second = int64(1e9)
	l := newLimiter(2, 10)
	take := func(n, hlen int, now int64) Drop {
		k := keyNumber(n)
		k.hlen = uint8(hlen)
		return l.allow(k, now)
	}
	for i, want := range []Drop{None, None, None, None, ClientLimit, ClientLimit} {
		if got := take(1, 6, 0); got != want {
			t.Errorf("request %d: got %v, want %v", i, got, want)
		}
	}
	if got := take(1, 6, second/2); got != None {
		t.Errorf("half a second later: got %v", got)
	}
	dropped := 0
	for i := range 40 {
		if take(100+i, 6, second/2) == TotalLimit {
			dropped++
		}
	}
	// The total has 20 to begin with: 4 were spent, up to 20 came back, and 1 was spent.
	if dropped != 21 {
		t.Errorf("got %d dropped by the total limit, want 21", dropped)
	}
	free := newLimiter(2, -1)
	for range 100 {
		if got := free.allow(key{hlen: 0}, 0); got != None {
			t.Errorf("InfiniBand: got %v", got)
		}
	}
}
