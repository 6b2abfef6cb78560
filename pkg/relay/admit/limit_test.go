package admit

import "testing"

// TestLimits in one table: each client, all of them, and clients that have no address to tell them apart.
func TestLimits(t *testing.T) {
	const second = int64(1e9)
	l := NewLimiter(2, 10)
	take := func(n int, now int64) Refusal { return l.Allow(&Asker{Tag: uint64(n)}, true, now) }
	for i, want := range []Refusal{Admitted, Admitted, Admitted, Admitted, Client, Client} {
		if got := take(1, 0); got != want {
			t.Errorf("request %d: got %v, want %v", i, got, want)
		}
	}
	if got := take(1, second/2); got != Admitted {
		t.Errorf("half a second later: got %v", got)
	}
	dropped := 0
	for i := range 40 {
		if take(100+i, second/2) == Total {
			dropped++
		}
	}
	// The total has 20 to begin with: 4 were spent, up to 20 came back, and 1 was spent.
	if dropped != 21 {
		t.Errorf("got %d dropped by the total limit, want 21", dropped)
	}
	free := NewLimiter(2, -1)
	for range 100 {
		if got := free.Allow(&Asker{}, false, 0); got != Admitted {
			t.Errorf("a client that shows nothing it could be known by: got %v", got)
		}
	}
}

// TestNewcomersLeaveHalfOfTheTotal: a flood of invented machines, each within its own rate, spends no more than half of
// the total's burst, and has no served client's allowance forgotten.
func TestNewcomersLeaveHalfOfTheTotal(t *testing.T) {
	l := NewLimiter(2, 100)
	for n := range uint64(1_000_000) {
		l.Allow(&Asker{Tag: n + 10}, false, 1)
	}
	served := &Asker{Tag: 1}
	for i, want := range []Refusal{Admitted, Admitted, Admitted, Admitted, Client} {
		if got := l.Allow(served, true, 1); got != want {
			t.Errorf("request %d of a served client: got %v, want %v", i, got, want)
		}
		for n := range uint64(100_000) {
			l.Allow(&Asker{Tag: n + 10}, false, 1)
		}
	}
	if got := l.Allow(&Asker{Tag: 5}, false, 1); got != Total {
		t.Errorf("one more newcomer: got %v", got)
	}
}

// TestSecondNameHasItsOwnAllowance: neither a thousand names of one client nor a thousand clients of one name pass.
func TestSecondNameHasItsOwnAllowance(t *testing.T) {
	passed := func(asker func(n uint64) *Asker) (n int) {
		l := NewLimiter(2, -1)
		for i := range uint64(1000) {
			if l.Allow(asker(i), false, 1) == Admitted {
				n++
			}
		}
		return n
	}
	for name, asker := range map[string]func(n uint64) *Asker{
		"one client": func(n uint64) *Asker { return &Asker{Tag: 1, Also: n + 10} },
		"one name":   func(n uint64) *Asker { return &Asker{Tag: n + 10, Also: 1} },
	} {
		if got := passed(asker); got != 4 {
			t.Errorf("%s: %d passed, want 4", name, got)
		}
	}
}
