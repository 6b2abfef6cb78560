package server

import (
	"net/netip"
	"strings"
	"testing"
)

const second = int64(1e9)

// asks sends n requests that every server answers.
func asks(s *Server, now int64, n int) {
	for range n {
		s.Asked(now, true)
	}
}

// TestSilentServer: it is taken for dead, and its next address is asked, after so many requests in a row without an
// answer; until one comes.
func TestSilentServer(t *testing.T) {
	p := newPool(func(*Config) {})
	s := p.servers[0]
	now := second
	s.answered(now)
	steps := []struct {
		what string
		do   func()
		dead bool
		next int
	}{
		{what: "one less", do: func() { asks(s, now, 29); now += 60 * second }},
		{what: "an answer", do: func() { s.answered(now); asks(s, now, 29); now += 60 * second }},
		{what: "no time to answer", do: func() { s.answered(now); asks(s, now, 30); now += 4 * second }},
		{what: "thirty", do: func() { now += second }, dead: true, next: 1},
		{what: "a quiet minute", do: func() { now += 60 * second }, dead: true, next: 1},
		{what: "one less again", do: func() { asks(s, now, 29); now += 6 * second }, dead: true, next: 1},
		{what: "thirty again", do: func() { asks(s, now, 1); now += second }, dead: true, next: 2},
		{what: "it answers", do: func() { s.answered(now); asks(s, now, 1); now += second }, next: 2},
		{what: "no answer is due", do: func() {
			for range 100 {
				s.Asked(now, false)
			}
			now += 60 * second
		}, next: 2},
	}
	for _, step := range steps {
		step.do()
		if lookup := p.check(now); lookup != strings.HasPrefix(step.what, "thirty") {
			t.Errorf("%s: looks up %v", step.what, lookup)
		}
		if s.dead != step.dead || s.next != step.next {
			t.Errorf("%s: got dead %v, address %d, want %v, %d", step.what, s.dead, s.next, step.dead, step.next)
		}
	}
}

// TestServersAreAliveByThemselves: one server's answers say nothing of the other's. Those whose source a Service has
// translated are of all.
func TestServersAreAliveByThemselves(t *testing.T) {
	p := newPool(func(c *Config) { c.Names = []string{"10.244.0.11", "10.244.0.12"} })
	var targets []Target
	for _, s := range p.servers {
		targets = append(targets, Target{Addr: netip.AddrPortFrom(netip.MustParseAddr(s.name), 67), Server: s})
	}
	boots, silent := p.servers[0], p.servers[1]
	silent.answered(second)
	for now := second; now < 100*second; now += second {
		for _, s := range p.servers {
			asks(s, now, 1)
		}
		p.Heard(targets[0].Addr.Addr(), targets, now)
		p.check(now)
	}
	if boots.dead || !silent.dead {
		t.Errorf("got dead %v of the one that answers, %v of the one that never does", boots.dead, silent.dead)
	}
	p.Heard(netip.MustParseAddr("10.96.0.9"), targets, 100*second)
	p.check(101 * second)
	if silent.dead {
		t.Error("dead although it may be the one that answers behind a Service")
	}
}
