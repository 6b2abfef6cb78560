package server

import (
	"net/netip"
	"testing"
)

const (
	second  = int64(1e9)
	known   = uint64(0x1000) // a machine that the server has answered
	unknown = uint64(0x2000)
)

// asks has a machine send n DISCOVERs.
func asks(s *Server, now int64, machine uint64, n int) {
	for range n {
		s.Asked(now, &Request{AnswerExpected: true, GivenBefore: Offer, Machine: machine, MAC: [6]byte{2, 0, 0, 0, 0, 0x50}})
	}
}

// TestDeadServerStaysDead until it answers: neither a quiet second nor more requests bring it back.
func TestDeadServerStaysDead(t *testing.T) {
	p := newPool(func(c *Config) { c.DeadAfter = 3 })
	s := p.servers[0]
	s.learn(known, Offer)
	now := second
	ask := func(n int) { asks(s, now, known, n) }
	steps := []struct {
		what string
		do   func()
		dead bool
		next int
	}{
		{what: "fewer than three", do: func() { ask(2); now += 6 * second }},
		{what: "three, but no time to answer", do: func() { s.answered(now); ask(3); now += second }},
		{what: "three", do: func() { now += 5 * second }, dead: true, next: 1},
		{what: "a quiet second", do: func() { now += second }, dead: true, next: 1},
		{what: "two requests", do: func() { ask(2); now += 6 * second }, dead: true, next: 1},
		{what: "another", do: func() { ask(1); now += second }, dead: true, next: 2},
		{what: "an answer", do: func() { s.answered(now); ask(1); now += second }, next: 2},
	}
	for _, step := range steps {
		step.do()
		p.check(now)
		if s.dead != step.dead || s.next != step.next {
			t.Errorf("%s: got dead %v, address %d, want %v, %d", step.what, s.dead, s.next, step.dead, step.next)
		}
	}
}

// TestServerIsDeadByMachinesThatItAnswered tells what a server's silence means, of which machine and to which message.
func TestServerIsDeadByMachinesThatItAnswered(t *testing.T) {
	boots := []int64{0, 4, 12, 28} // seconds in which firmware asks
	repeat := func(n int) (at []int64) {
		for i := range n {
			at = append(at, int64(i))
		}
		return at
	}
	tests := map[string]struct {
		served  []uint64 // were granted an address
		request Request
		at      []int64
		until   int64 // second of the last look
		dead    bool
	}{
		"an unknown machine, 26 times":   {request: Request{GivenBefore: Offer, Machine: unknown}, at: repeat(26), until: 60},
		"an unknown machine, 500 times":  {served: []uint64{known}, request: Request{GivenBefore: Offer, Machine: unknown}, at: repeat(500), until: 600},
		"a served machine boots":         {served: []uint64{known}, request: Request{GivenBefore: Offer, Machine: known}, at: boots, until: 60, dead: true},
		"for half a minute only":         {served: []uint64{known}, request: Request{GivenBefore: Offer, Machine: known}, at: boots, until: 29},
		"it renews":                      {served: []uint64{known}, request: Request{GivenBefore: Lease, Machine: known}, at: boots, until: 60, dead: true},
		"it asks twice":                  {served: []uint64{known}, request: Request{GivenBefore: Offer, Machine: known}, at: boots[:2], until: 600},
		"it asks once an hour":           {served: []uint64{known}, request: Request{GivenBefore: Offer, Machine: known}, at: []int64{0, 3600, 7200, 10800}, until: 10900},
		"what need not be answered":      {served: []uint64{known}, request: Request{GivenBefore: Nothing, Machine: known}, at: repeat(90), until: 120},
		"its system, and not the ROM":    {served: []uint64{Machine(known, true)}, request: Request{GivenBefore: Offer, Machine: Machine(known, false)}, at: repeat(30), until: 60},
		"a machine without an identity":  {request: Request{GivenBefore: Offer}, at: repeat(90), until: 120},
		"another that was only offered":  {request: Request{GivenBefore: Lease, Machine: known}, at: repeat(90), until: 120},
		"the answer goes past the relay": {served: []uint64{known}, request: Request{GivenBefore: Offer, Machine: known}, at: repeat(90), until: 120},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			p := newPool(func(*Config) {})
			s, start := p.servers[0], 1000*second
			for _, machine := range test.served {
				s.answered(start)
				s.learn(machine, Lease)
			}
			if name == "another that was only offered" {
				s.learn(known, Offer)
			}
			test.request.AnswerExpected = name != "the answer goes past the relay"
			detour := s.detour
			for now, i := start, 0; now <= start+test.until*second; now += second {
				for i < len(test.at) && start+test.at[i]*second <= now {
					s.Asked(now, &test.request)
					i++
				}
				p.check(now)
			}
			if s.dead != test.dead || s.detour != (detour != test.dead) {
				t.Errorf("got dead %v, another source port %v, want %v", s.dead, s.detour, test.dead)
			}
		})
	}
}

// TestServerIsDeadByDifferentMachines: none was ever answered, as after a restart of the relay.
func TestServerIsDeadByDifferentMachines(t *testing.T) {
	for different, want := range map[int]bool{differentMachines - 1: false, 40: true} {
		p := newPool(func(*Config) {})
		s := p.servers[0]
		for n := range 120 {
			asks(s, second+int64(n)*second/4, uint64(n%different)<<answerBits, 1)
		}
		p.check(second * 31)
		if s.dead != want {
			t.Errorf("%d machines: got dead %v", different, s.dead)
		}
		s.answered(second * 32)
		p.check(second * 33)
		if s.dead {
			t.Errorf("%d machines: dead after an answer", different)
		}
	}
	// A few machines a day are not a rack.
	p := newPool(func(*Config) {})
	for n := range 100 {
		asks(p.servers[0], second*int64(n)*600, uint64(n)<<answerBits, 4)
		p.check(second*int64(n)*600 + 59*second)
	}
	if p.servers[0].dead {
		t.Error("dead by one machine each ten minutes")
	}
}

// TestNewcomersDoNotCallServerDead: nobody answers invented machines. What served ones are owed counts.
func TestNewcomersDoNotCallServerDead(t *testing.T) {
	p := newPool(func(c *Config) {
		c.DeadAfter = 20
		c.Crowded = func(int64) bool { return true }
	})
	s, now := p.servers[0], second
	for n := range 1000 {
		asks(s, now, uint64(n+100)<<answerBits, 1)
	}
	late := now + 6*second
	if lookup := p.check(late); !lookup || s.dead || !s.detour {
		t.Errorf("newcomers: got lookup %v, dead %v, another way %v", lookup, s.dead, s.detour)
	}
	s.learn(known, Lease)
	asks(s, now, known, 20)
	if lookup := p.check(late); !lookup || !s.dead {
		t.Errorf("served machines: got lookup %v, dead %v", lookup, s.dead)
	}
}

// TestServersAreAliveByThemselves: one server's answers say nothing of the other's, nor do they name its machines.
func TestServersAreAliveByThemselves(t *testing.T) {
	p := newPool(func(c *Config) { c.Names = []string{"10.244.0.11", "10.244.0.12"} })
	var targets []Target
	for _, s := range p.servers {
		targets = append(targets, Target{Addr: netip.AddrPortFrom(netip.MustParseAddr(s.name), 67), Server: s})
	}
	boots, knowsNone := p.servers[0], p.servers[1]
	for now := second; now < 100*second; now += second {
		for _, s := range p.servers {
			asks(s, now, known, 1)
		}
		if now < 10*second {
			p.Answered(targets[0].Addr.Addr(), targets, now, known, Offer)
		}
		p.check(now)
	}
	if !boots.dead || knowsNone.dead {
		t.Errorf("got dead %v of the one that stopped, %v of the one that never answered", boots.dead, knowsNone.dead)
	}
	p.Heard(targets[0].Addr.Addr(), targets, 100*second)
	p.check(101 * second)
	if boots.dead {
		t.Error("dead although its replies come")
	}
}
