package relay

import "testing"

// TestLimits in one table: each client, all of them, and clients that have no address to tell them apart.
func TestLimits(t *testing.T) {
	const second = int64(1e9)
	l := newLimiter(2, 10)
	take := func(n, hlen int, now int64) Drop {
		k := keyNumber(n)
		k.hlen = uint8(hlen)
		return l.allow(k, &arrival{}, now)
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
		if got := free.allow(key{hlen: 0}, &arrival{}, 0); got != None {
			t.Errorf("InfiniBand: got %v", got)
		}
	}
}

// TestPodCannotStarveMachine: neither by the machine's chaddr nor by so many requests that the total is spent; nor can
// a machine of another VLAN.
func TestPodCannotStarveMachine(t *testing.T) {
	l := newLimiter(10, 100)
	machine := &arrival{listener: 0}
	pod := &arrival{listener: unicast, source: peer{ip: [4]byte{10, 244, 0, 66}, port: 68}}
	neighbour := &arrival{listener: 1}
	for i := range 1000 {
		l.allow(keyNumber(1), pod, 1)
		l.allow(keyNumber(i), pod, 1)
	}
	for range 30 {
		l.allow(keyNumber(1), neighbour, 1)
	}
	if got := l.allow(keyNumber(1), machine, 1); got != None {
		t.Errorf("the machine on the VLAN: %v", got)
	}
	if got := l.allow(keyNumber(1), pod, 1); got != ClientLimit {
		t.Errorf("the pod: %v", got)
	}
	other := &arrival{listener: unicast, source: peer{ip: [4]byte{10, 244, 0, 67}, port: 68}}
	if got := l.allow(keyNumber(1), other, 1); got != TotalLimit {
		t.Errorf("one more pod: %v", got)
	}
}
