package admit

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

const usual = 100

// newGate is a gate without limits by client.
func newGate(rate int) *Gate { return NewGate(rate, NewLimiter(-1, -1)) }

// site is a gate with what happens in front of it and behind it, in simulated time.
type site struct {
	gate *Gate
	now  int64
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

func newSite(rate int) *site {
	return &site{gate: newGate(rate), work: 270 * time.Microsecond, backlog: 70 * time.Millisecond}
}

func (s *site) ask(m *machine) Refusal {
	m.asked++
	refused := s.gate.Ask(&Asker{Tag: m.tag, IsRequest: m.isRequest}, s.now)
	if refused == Admitted {
		s.send(m)
	}
	return refused
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
			if most := 5 + usual*int(s.now-since)/1e9; sent > most {
				t.Errorf("the servers got %d requests, want %d at most", sent, most)
			}
			// From now on the machine is known, and waits for nobody.
			for range 100 {
				test.flood(s, random, n)
				n++
				if s.gate.Ask(&Asker{Tag: m.tag}, s.now) != Admitted {
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
	classOf := func(i uint64) class {
		_, c := s.gate.classOf(i*0x9e3779b97f4a7c15, false, s.now)
		return c
	}
	forgotten := 0
	for n, wait := range []time.Duration{0, 4 * time.Second, 8 * time.Second} {
		for range wait / time.Millisecond {
			invent(s, random, 20)
			s.step(time.Millisecond)
		}
		for i := range uint64(machines) {
			if got := classOf(i + 1); got > first-class(n) {
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

// TestNobodyIsRefusedWithoutPressure: a thousand machines at once, seen before or not, and 20,000 a second that a fast server
// answers.
func TestNobodyIsRefusedWithoutPressure(t *testing.T) {
	t.Run("a thousand at once, nobody answers yet", func(t *testing.T) {
		s := newSite(usual)
		s.server = func(*machine) *Answer { return nil }
		for i := range uint64(1000) {
			if got := s.ask(&machine{tag: i<<40 | i + 1}); got != Admitted {
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
				if got := s.ask(&machine{tag: random.Uint64() | 1<<63}); got != Admitted {
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
	if got := run(2 * time.Second); got < 196 || got > 202 {
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
	g := newGate(1)
	const real = 0x1234567890abcdef
	g.Answered(real, Granted, true, 0)
	random := rand.New(rand.NewPCG(1, 2))
	for range 1_000_000 {
		tag := random.Uint64() | 1
		g.Ask(&Asker{Tag: tag}, 0)
		g.Answered(tag, Offered, false, 0)
		g.Answered(tag, Other, false, 0)
	}
	if !g.isServed(real) {
		t.Error("the served machine was forgotten")
	}
	g.Answered(1<<40, Offered, false, 0)
	if g.isServed(1<<40) || g.offered.find(1<<40) == nil {
		t.Error("the machine that was offered an address is not known as such")
	}
	var got []class
	for range 6 {
		_, c := g.classOf(1<<40, true, int64(time.Second))
		got = append(got, c)
	}
	if want := []class{follows, follows, follows, follows, vouched, vouched}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	g.Answered(1<<40, Offered, false, 0)
	if _, c := g.classOf(1<<40, false, 0); c != vouched {
		t.Error("a DISCOVER follows no OFFER, but tells that the servers know the machine")
	}
	if _, c := g.classOf(1<<40, true, int64(2*time.Minute)); c != vouched {
		t.Error("a REQUEST two minutes after the OFFER does not follow it")
	}
}

// TestClasses: asking again counts only after half a second, and for three tries.
func TestClasses(t *testing.T) {
	const ms = int64(time.Millisecond)
	for name, test := range map[string]struct {
		tries uint8 // that reached the servers before
		want  []class
	}{
		"refused": {0, []class{first, first, first, askedTwice, askedTwice, askedThrice, vouched, vouched}},
		"sent":    {mostTries, []class{first, first, first, first, first, first, first, first}},
	} {
		g := newGate(usual)
		var got []class
		for _, at := range []int64{0, 10, 100, 1000, 1100, 3000, 7000, 15000} {
			e, c := g.classOf(7<<40, false, at*ms)
			if at == 0 {
				e.tries = test.tries
				if test.tries > 0 {
					c = first
				}
			}
			got = append(got, c)
		}
		if !slices.Equal(got, test.want) {
			t.Errorf("%s: got %v, want %v", name, got, test.want)
		}
	}
}

// TestEachClassHasItsPart: one class that asks without end takes nothing of those before it, and leaves them their part of
// the rate; what a class has no need of is the next one's.
func TestEachClassHasItsPart(t *testing.T) {
	g := newGate(800)
	drain := func(c class) (n int) {
		for ; g.tokens[c] >= 1; n++ {
			g.tokens[c]--
		}
		return n
	}
	for c, burst := range bursts {
		if n := drain(class(c)); n != int(burst) {
			t.Errorf("class %d had %d tokens, want %v", c, n, burst)
		}
	}
	g.refill(int64(time.Second))
	var got [classes]int
	for c := range classes {
		got[c] = drain(c)
	}
	if want := [classes]int{256, 244, 100, 100, 100}; got != want {
		t.Errorf("a second gave %v, want %v", got, want)
	}
	for c := range first {
		g.tokens[c] = bursts[c]
	}
	g.refill(2 * int64(time.Second))
	if n := drain(first); n != 800 {
		t.Errorf("the last class got %d of a second, want all", n)
	}
}

// TestNoLimit: a negative rate lets everything pass.
func TestNoLimit(t *testing.T) {
	g := newGate(-1)
	for i := range uint64(10000) {
		if refused := g.Ask(&Asker{Tag: i<<40 | 1}, 0); refused != Admitted {
			t.Fatal(refused)
		}
	}
}

// TestNamelessClients have no place in any table, and are always new.
func TestNamelessClients(t *testing.T) {
	g := newGate(1)
	g.Answered(0, Granted, true, 0)
	if g.isServed(0) {
		t.Error("got the nameless served")
	}
	for at := range int64(5) {
		if _, c := g.classOf(0, true, at*1e9); c != first {
			t.Errorf("got %v", c)
		}
	}
}

func TestNoAllocations(t *testing.T) {
	g, random := newGate(usual), rand.New(rand.NewPCG(1, 2))
	now := int64(0)
	if got := testing.AllocsPerRun(10000, func() { flood(g, random, &now) }); got != 0 {
		t.Errorf("got %v allocations", got)
	}
}

// flood is an invented machine's request.
func flood(g *Gate, random *rand.Rand, now *int64) {
	*now += 50_000
	g.Ask(&Asker{Tag: random.Uint64() | 1}, *now)
}

func BenchmarkFlood(b *testing.B) {
	g, random := newGate(usual), rand.New(rand.NewPCG(1, 2))
	now := int64(0)
	b.ReportAllocs()
	for b.Loop() {
		flood(g, random, &now)
	}
}

func BenchmarkServed(b *testing.B) {
	g := newGate(usual)
	g.Answered(1<<40, Granted, true, 0)
	b.ReportAllocs()
	for b.Loop() {
		if refused := g.Ask(&Asker{Tag: 1 << 40}, 0); refused != Admitted {
			b.Fatal(refused)
		}
	}
}
