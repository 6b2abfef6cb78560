package server

import "testing"

// TestDeadServerStaysDead until it answers: neither a quiet second nor more requests bring it back.
func TestDeadServerStaysDead(t *testing.T) {
	p := newPool(func(c *Config) { c.DeadAfter = 3 })
	s := p.servers[0]
	const second = int64(1e9)
	now := second
	ask := func(n int) {
		for range n {
			s.Asked(now, true, false)
		}
	}
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

// TestNewcomersDoNotCallServerDead: nobody answers invented machines. What served ones are owed counts.
func TestNewcomersDoNotCallServerDead(t *testing.T) {
	p := newPool(func(c *Config) {
		c.DeadAfter = 20
		c.Crowded = func(int64) bool { return true }
	})
	s, now := p.servers[0], int64(1e9)
	for range 1000 {
		s.Asked(now, true, false)
	}
	late := now + int64(6e9)
	if lookup := p.check(late); !lookup || s.dead || !s.detour {
		t.Errorf("newcomers: got lookup %v, dead %v, another way %v", lookup, s.dead, s.detour)
	}
	for range 20 {
		s.Asked(now, true, true)
	}
	if lookup := p.check(late); !lookup || !s.dead {
		t.Errorf("served machines: got lookup %v, dead %v", lookup, s.dead)
	}
}
