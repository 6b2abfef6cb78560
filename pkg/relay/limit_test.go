package relay

import "testing"

// TestLimits in one table: each client, all of them, and clients that have no address to tell them apart.
func TestLimits(t *testing.T) {
	const second = int64(1e9)
	l := newLimiter(2, 10)
	take := func(n int, now int64) Drop { return l.allow(&arrival{client: uint64(n), served: true}, now) }
	for i, want := range []Drop{None, None, None, None, ClientLimit, ClientLimit} {
		if got := take(1, 0); got != want {
			t.Errorf("request %d: got %v, want %v", i, got, want)
		}
	}
	if got := take(1, second/2); got != None {
		t.Errorf("half a second later: got %v", got)
	}
	dropped := 0
	for i := range 40 {
		if take(100+i, second/2) == TotalLimit {
			dropped++
		}
	}
	// The total has 20 to begin with: 4 were spent, up to 20 came back, and 1 was spent.
	if dropped != 21 {
		t.Errorf("got %d dropped by the total limit, want 21", dropped)
	}
	free := newLimiter(2, -1)
	for range 100 {
		if got := free.allow(&arrival{}, 0); got != None {
			t.Errorf("a client that shows nothing it could be known by: got %v", got)
		}
	}
}

// TestPodCannotStarveMachine: neither by the machine's chaddr nor by so many requests that the total is spent; nor can
// a machine of another VLAN.
func TestPodCannotStarveMachine(t *testing.T) {
	b := newBench(t, func(c *Config) {
		c.ClientRate, c.TotalRate = 10, 100
		c.Listeners = append(c.Listeners, Listener{Name: "macvlan1"})
	})
	allow := func(n int, a arrival) Drop {
		a.served = true
		a.client = b.clientOf(keyNumber(n), nil, a.listener, a.source.ip)
		return b.limits.allow(&a, 1)
	}
	machine, neighbour := arrival{listener: 0}, arrival{listener: 1}
	pod := arrival{listener: unicast, source: peer{ip: [4]byte{10, 244, 0, 66}, port: 68}}
	for i := range 1000 {
		allow(1, pod)
		allow(i, pod)
	}
	for range 30 {
		allow(1, neighbour)
	}
	if got := allow(1, machine); got != None {
		t.Errorf("the machine on the VLAN: %v", got)
	}
	if got := allow(1, pod); got != ClientLimit {
		t.Errorf("the pod: %v", got)
	}
	other := arrival{listener: unicast, source: peer{ip: [4]byte{10, 244, 0, 67}, port: 68}}
	if got := allow(1, other); got != TotalLimit {
		t.Errorf("one more pod: %v", got)
	}
}

// TestNewcomersLeaveHalfOfTheTotal: a flood of invented machines, each within its own rate, spends no more than half of
// the total's burst, and has no served client's allowance forgotten.
func TestNewcomersLeaveHalfOfTheTotal(t *testing.T) {
	l := newLimiter(2, 100)
	for n := range uint64(1_000_000) {
		l.allow(&arrival{client: n + 10}, 1)
	}
	served := &arrival{client: 1, served: true}
	for i, want := range []Drop{None, None, None, None, ClientLimit} {
		if got := l.allow(served, 1); got != want {
			t.Errorf("request %d of a served client: got %v, want %v", i, got, want)
		}
		for n := range uint64(100_000) {
			l.allow(&arrival{client: n + 10}, 1)
		}
	}
	if got := l.allow(&arrival{client: 5}, 1); got != TotalLimit {
		t.Errorf("one more newcomer: got %v", got)
	}
}
