package admit

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

var usual = Limit{Rate: 100, Burst: 2048}

// site is a gate with what happens in front of it and behind it, in simulated time.
type site struct {
	gate *Gate
	now  int64
	held map[int32]*machine
	// server answers a machine's request, or nil.
	server func(m *machine) *Answer
	sent   int
	// busy is when the server has worked off what it was sent; each takes work, and more than backlog of it is lost.
	busy          int64
	work, backlog time.Duration
	lost          int
	due           []reply
}

type reply struct {
	at     int64
	m      *machine
	answer Answer
}

// machine is a client that boots: DISCOVER until an OFFER, then REQUEST until an ACK, again after a second, two, four...
type machine struct {
	tag       uint64
	isRequest bool
	next      int64
	wait      time.Duration
	booted    int64
	asked     int
}

func newSite(limit Limit) *site {
	return &site{gate: NewGate(limit), held: map[int32]*machine{}, work: 270 * time.Microsecond, backlog: 70 * time.Millisecond}
}

func (s *site) ask(m *machine) Verdict {
	m.asked++
	verdict, place, class := s.gate.Ask(m.tag, m.isRequest, s.now)
	switch verdict {
	case Send:
		s.send(m)
	case Wait:
		s.held[place] = m
		s.gate.Put(place, class, m.tag, s.now)
	}
	return verdict
}

func (s *site) send(m *machine) {
	s.sent++
	s.busy = max(s.busy, s.now)
	if s.busy-s.now > int64(s.backlog) {
		s.lost++
		return
	}
	s.busy += int64(s.work)
	if a := s.server(m); a != nil {
		s.due = append(s.due, reply{s.busy, m, *a})
	}
}

// step lets time pass, and everything happen that is due.
func (s *site) step(d time.Duration) {
	s.now += int64(d)
	n := 0
	for _, r := range s.due {
		if r.at > s.now {
			s.due[n] = r
			n++
			continue
		}
		s.gate.Answered(r.m.tag, r.answer, true, s.now)
		switch {
		case r.answer == Offered && !r.m.isRequest:
			r.m.isRequest, r.m.wait, r.m.next = true, 0, s.now
		case r.answer == Granted && r.m.booted == 0:
			r.m.booted = s.now
		}
	}
	s.due = s.due[:n]
	for {
		verdict, place := s.gate.Next(s.now)
		if verdict == Wait {
			return
		}
		m := s.held[place]
		delete(s.held, place)
		s.gate.Free(place)
		if verdict == Send {
			s.send(m)
		}
	}
}

// retry has a machine ask when its time has come.
func (s *site) retry(m *machine) {
	if m.booted == 0 && s.now >= m.next {
		s.ask(m)
		m.wait = max(2*m.wait, time.Second)
		m.next = s.now + int64(m.wait)
	}
}

// answers is a server that grants everything to the machines that it knows, and is silent to all others.
func answers(known ...*machine) func(*machine) *Answer {
	return func(m *machine) *Answer {
		if known != nil && !slices.Contains(known, m) {
			return nil
		}
		a := Offered
		if m.isRequest {
			a = Granted
		}
		return &a
	}
}

// TestRealMachineBootsInFlood: whatever the flood does, the machine has its address after so many requests.
func TestRealMachineBootsInFlood(t *testing.T) {
	const tick = time.Millisecond
	tests := map[string]struct {
		// flood is what the attacker sends in a tick, number n.
		flood func(s *site, random *rand.Rand, n int)
		asks  int // of the machine, at most
		lead  time.Duration
	}{
		"300 a second":     {func(s *site, r *rand.Rand, n int) { invent(s, r, n%3/2) }, 3, 5 * time.Second},
		"1,000 a second":   {func(s *site, r *rand.Rand, _ int) { invent(s, r, 1) }, 4, 5 * time.Second},
		"20,000 a second":  {func(s *site, r *rand.Rand, _ int) { invent(s, r, 20) }, 4, 5 * time.Second},
		"100,000 a second": {func(s *site, r *rand.Rand, _ int) { invent(s, r, 100) }, 5, 5 * time.Second},
		"REQUESTs without an OFFER": {func(s *site, r *rand.Rand, _ int) {
			for range 20 {
				s.ask(&machine{tag: r.Uint64() | 1, isRequest: true})
			}
		}, 4, 5 * time.Second},
		"each asks twice": {func() func(s *site, r *rand.Rand, n int) {
			var last [1000][]*machine
			return func(s *site, r *rand.Rand, n int) {
				for _, m := range last[n%1000] {
					s.ask(m)
				}
				last[n%1000] = last[n%1000][:0]
				for range 10 {
					m := &machine{tag: r.Uint64() | 1<<63}
					last[n%1000] = append(last[n%1000], m)
					s.ask(m)
				}
			}
		}(), 6, 5 * time.Second},
		"the same 50,000 in any order": {func(s *site, r *rand.Rand, _ int) {
			for range 20 {
				s.ask(&machine{tag: uint64(r.IntN(50_000)+1) * 0x9e3779b97f4a7c15})
			}
		}, 3, 30 * time.Second}, // by then each has asked several times
		"the same 2,000 again and again": {func(s *site, _ *rand.Rand, n int) {
			for i := range 20 {
				s.ask(&machine{tag: uint64((n*20+i)%2000)<<32 | uint64(i) | 1<<60})
			}
		}, 6, 5 * time.Second},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			m, random := &machine{tag: 0xabcdef0123456789}, rand.New(rand.NewPCG(1, 2))
			s := newSite(usual)
			s.server = answers(m)
			n := 0
			run := func(until func() bool) {
				for ; !until(); n++ {
					test.flood(s, random, n)
					s.step(tick)
				}
			}
			run(func() bool { return s.now > int64(test.lead) })
			m.next = s.now
			sent, since := s.sent, s.now
			run(func() bool { s.retry(m); return m.booted != 0 || m.asked > 20 })
			if m.booted == 0 || m.asked > test.asks {
				t.Errorf("asked %d times, booted %v; want at most %d", m.asked, m.booted != 0, test.asks)
			}
			sent = s.sent - sent
			if most := 5 + usual.Rate*int(s.now-since)/1e9; sent > most {
				t.Errorf("the servers got %d requests, want %d at most", sent, most)
			}
			// From now on the machine is known, and waits for nobody.
			for range 100 {
				test.flood(s, random, n)
				n++
				if verdict, _, _ := s.gate.Ask(m.tag, false, s.now); verdict != Send {
					t.Fatal("a served machine is held back")
				}
			}
		})
	}
}

// TestFirmwareIsRememberedInFlood: it waits 4 s until it asks again, and then 8 s (PXE specification 2.1, section 2.2.3).
// Nearly each is known by then, although 20,000 a second have asked in between.
func TestFirmwareIsRememberedInFlood(t *testing.T) {
	const machines = 2000
	s, random := newSite(usual), rand.New(rand.NewPCG(1, 2))
	s.server = func(*machine) *Answer { return nil }
	class := func(i uint64) Class {
		_, c := s.gate.class(i*0x9e3779b97f4a7c15, false, s.now)
		return c
	}
	forgotten := 0
	for n, wait := range []time.Duration{0, 4 * time.Second, 8 * time.Second} {
		for range wait / time.Millisecond {
			invent(s, random, 20)
			s.step(time.Millisecond)
		}
		for i := range uint64(machines) {
			if got := class(i + 1); got > First-Class(n) {
				forgotten++
			}
		}
	}
	if forgotten > machines/50 {
		t.Errorf("%d of %d requests were taken for a machine's first", forgotten, 2*machines)
	}
}

// invent has n machines ask that nobody has seen before.
func invent(s *site, random *rand.Rand, n int) {
	for range n {
		s.ask(&machine{tag: random.Uint64() | 1<<63})
	}
}

// TestNothingWaitsWithoutPressure: a thousand machines at once, seen before or not, and 20,000 a second that a fast server
// answers.
func TestNothingWaitsWithoutPressure(t *testing.T) {
	t.Run("a thousand at once, nobody answers yet", func(t *testing.T) {
		s := newSite(usual)
		s.server = func(*machine) *Answer { return nil }
		for i := range uint64(1000) {
			if got := s.ask(&machine{tag: i<<40 | i + 1}); got != Send {
				t.Fatalf("machine %d: got %v", i, got)
			}
		}
	})
	t.Run("20,000 a second, all answered", func(t *testing.T) {
		s, random := newSite(usual), rand.New(rand.NewPCG(1, 2))
		s.work = time.Microsecond
		s.server = answers()
		for range 5000 {
			for range 20 {
				if got := s.ask(&machine{tag: random.Uint64() | 1<<63}); got != Send {
					t.Fatalf("after %v: got %v", time.Duration(s.now), got)
				}
			}
			s.step(time.Millisecond)
		}
	})
}

// TestRateFollowsTheAnswers: what goes to the servers is what they answer, an eighth more, and the rate; it rises within a
// second from nothing to what they can do.
func TestRateFollowsTheAnswers(t *testing.T) {
	s, random := newSite(usual), rand.New(rand.NewPCG(1, 2))
	silent := true
	all := answers()
	s.server = func(m *machine) *Answer {
		if silent {
			return nil
		}
		return all(m)
	}
	run := func(d time.Duration) (sent int) {
		before := s.sent
		for end := s.now + int64(d); s.now < end; {
			invent(s, random, 20)
			s.step(time.Millisecond)
		}
		return s.sent - before
	}
	run(5 * time.Second)
	if got := run(2 * time.Second); got < 198 || got > 202 {
		t.Errorf("a silent server got %d requests in two seconds, want 200", got)
	}
	silent = false
	s.work = 200 * time.Microsecond // 5,000 a second
	if got := run(time.Second); got < 500 {
		t.Errorf("a server that is back got %d requests in the first second", got)
	}
	run(5 * time.Second)
	lost := s.lost
	got := run(2 * time.Second)
	if got < 9000 || got > 10000*9/8+200 {
		t.Errorf("a server of 5,000 a second got %d in two seconds", got)
	}
	t.Logf("of %d requests the server lost %d", got, s.lost-lost)
}

// TestOfferedIsNotServed: a client that was offered an address and never takes it gains four REQUESTs a minute, and no more. A
// million of them do not have a served machine forgotten.
func TestOfferedIsNotServed(t *testing.T) {
	g := NewGate(Limit{Rate: 1, Burst: 1})
	const real = 0x1234567890abcdef
	g.Answered(real, Granted, true, 0)
	random := rand.New(rand.NewPCG(1, 2))
	for range 1_000_000 {
		tag := random.Uint64() | 1
		g.Ask(tag, false, 0)
		g.Answered(tag, Offered, false, 0)
		g.Answered(tag, Other, false, 0)
	}
	if !g.Served(real) {
		t.Error("the served machine was forgotten")
	}
	g.Answered(1<<40, Offered, false, 0)
	var got []Class
	for range 6 {
		_, _, class := g.Ask(1<<40, true, int64(time.Second))
		got = append(got, class)
	}
	if want := []Class{Follows, Follows, Follows, Follows, Vouched, Vouched}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	g.Answered(1<<40, Offered, false, 0)
	if _, _, class := g.Ask(1<<40, false, 0); class != Vouched {
		t.Error("a DISCOVER follows no OFFER, but tells that the servers know the machine")
	}
	if _, _, class := g.Ask(1<<40, true, int64(2*time.Minute)); class != Vouched {
		t.Error("a REQUEST two minutes after the OFFER does not follow it")
	}
}

// TestClasses: asking again counts only after half a second, and for three tries.
func TestClasses(t *testing.T) {
	g := NewGate(usual)
	const ms = int64(time.Millisecond)
	var got []Class
	for _, at := range []int64{0, 10, 100, 1000, 1100, 3000, 7000, 15000} {
		_, _, class := g.Ask(7<<40, false, at*ms)
		got = append(got, class)
	}
	want := []Class{First, First, First, First, First, First, First, First} // it was sent three times, in vain
	if !slices.Equal(got, want) {
		t.Errorf("sent: got %v, want %v", got, want)
	}
	g = NewGate(Limit{Rate: 1, Burst: 0})
	got = got[:0]
	for _, at := range []int64{0, 10, 100, 1000, 1100, 3000, 7000, 15000} {
		_, _, class := g.Ask(7<<40, false, at*ms)
		got = append(got, class)
	}
	want = []Class{First, First, First, AskedTwice, AskedTwice, AskedThrice, Vouched, Vouched}
	if !slices.Equal(got, want) {
		t.Errorf("refused: got %v, want %v", got, want)
	}
}

// TestOldestWaitsFirst and nobody waits for longer than a second; places come back.
func TestOldestWaitsFirst(t *testing.T) {
	g := NewGate(Limit{Rate: 10, Burst: 1})
	var order []int32
	for i := range uint64(2 * Places) {
		verdict, place, class := g.Ask((i+1)<<40, false, 0)
		if verdict == Wait {
			g.Put(place, class, (i+1)<<40, 0)
			order = append(order, place)
		}
	}
	if len(order) != places[First] || g.Waiting() != places[First] {
		t.Fatalf("%d of %d wait, want %d", len(order), g.Waiting(), places[First])
	}
	for i := range 5 {
		verdict, place := g.Next(int64(i+1) * 1e8)
		if verdict != Send || place != order[i] {
			t.Errorf("got %v %d, want %d", verdict, place, order[i])
		}
		g.Free(place)
		if verdict, _ := g.Next(int64(i+1) * 1e8); verdict != Wait {
			t.Errorf("got %v, want to wait for the rate", verdict)
		}
		if due := g.Due(int64(i+1) * 1e8); due < 99*time.Millisecond || due > 101*time.Millisecond {
			t.Errorf("got due in %v", due)
		}
	}
	refused := 0
	for g.Waiting() > 0 {
		verdict, place := g.Next(int64(3 * time.Second))
		if verdict == Refuse {
			refused++
		}
		g.Free(place)
	}
	if refused != places[First]-5 || len(g.free) != Places {
		t.Errorf("%d refused, %d places free", refused, len(g.free))
	}
}

// TestTurns: while all classes wait each has its share.
func TestTurns(t *testing.T) {
	g := NewGate(Limit{Rate: 1000, Burst: 100})
	g.tokens = 0
	for class := range Classes {
		for range 64 {
			place := g.free[len(g.free)-1]
			g.free = g.free[:len(g.free)-1]
			g.Put(place, class, 1<<40, 0)
		}
	}
	var got [Classes]int
	for range 80 {
		before := [Classes]int{}
		for class := range Classes {
			before[class] = g.waiting[class].n
		}
		g.tokens = 1
		_, place := g.Next(1)
		g.Free(place)
		for class := range Classes {
			got[class] += before[class] - g.waiting[class].n
		}
	}
	if want := [Classes]int{40, 10, 10, 10, 10}; got != want {
		t.Errorf("got %v, want %v", got, want)
	}
}

// TestNoLimit: a negative rate lets everything pass.
func TestNoLimit(t *testing.T) {
	g := NewGate(Limit{Rate: -1, Burst: 1})
	for i := range uint64(10000) {
		if verdict, _, _ := g.Ask(i<<40|1, false, 0); verdict != Send {
			t.Fatal(verdict)
		}
	}
}

// TestNamelessClients have no place in any table, and are always new.
func TestNamelessClients(t *testing.T) {
	g := NewGate(Limit{Rate: 1, Burst: 0})
	g.Answered(0, Granted, true, 0)
	if g.Served(0) {
		t.Error("got the nameless served")
	}
	for at := range int64(5) {
		if _, _, class := g.Ask(0, true, at*1e9); class != First {
			t.Errorf("got %v", class)
		}
	}
}

func TestNoAllocations(t *testing.T) {
	g, random := NewGate(usual), rand.New(rand.NewPCG(1, 2))
	now := int64(0)
	if got := testing.AllocsPerRun(10000, func() { flood(g, random, &now) }); got != 0 {
		t.Errorf("got %v allocations", got)
	}
}

// flood is an invented machine's request, and what leaves meanwhile.
func flood(g *Gate, random *rand.Rand, now *int64) {
	*now += 50_000
	tag := random.Uint64() | 1
	if verdict, place, class := g.Ask(tag, false, *now); verdict == Wait {
		g.Put(place, class, tag, *now)
	}
	for {
		verdict, place := g.Next(*now)
		if verdict == Wait {
			return
		}
		g.Free(place)
	}
}

func BenchmarkFlood(b *testing.B) {
	g, random := NewGate(usual), rand.New(rand.NewPCG(1, 2))
	now := int64(0)
	b.ReportAllocs()
	for b.Loop() {
		flood(g, random, &now)
	}
}

func BenchmarkServed(b *testing.B) {
	g := NewGate(usual)
	g.Answered(1<<40, Granted, true, 0)
	b.ReportAllocs()
	for b.Loop() {
		if verdict, _, _ := g.Ask(1<<40, false, 0); verdict != Send {
			b.Fatal(verdict)
		}
	}
}
