package relay

import (
	"testing"

	"github.com/tinkerbell/stack/pkg/dhcp"
)

// TestDeadServerStaysDead until it answers: neither a quiet second nor more requests bring it back.
func TestDeadServerStaysDead(t *testing.T) {
	b := newBench(t, func(c *Config) { c.DeadAfter = 3 })
	s := b.health.servers[0]
	const second = int64(1e9)
	now := second
	ask := func(n int) {
		for range n {
			s.asked(now, true, false)
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
		b.health.check(now)
		if s.dead != step.dead || s.next != step.next {
			t.Errorf("%s: got dead %v, address %d, want %v, %d", step.what, s.dead, s.next, step.dead, step.next)
		}
	}
}

// TestUnansweredCountsWhatComesBackHere: a server is not dead because nobody answers a RELEASE or a DECLINE, or because
// it answers another relay agent past us.
func TestUnansweredCountsWhatComesBackHere(t *testing.T) {
	b := newBench(t, nil)
	s := b.health.servers[0]
	for _, step := range []struct {
		what string
		m    dhcp.Message
		want int64
	}{
		{"another relay's", withGiaddr(message(dhcp.Request, byte(dhcp.Discover)), theirGiaddr), 0},
		{"a RELEASE", message(dhcp.Request, byte(dhcp.Release)), 0},
		{"a DECLINE", message(dhcp.Request, byte(dhcp.Decline)), 0},
		{"a DISCOVER", message(dhcp.Request, byte(dhcp.Discover)), 1},
		{"a REQUEST", message(dhcp.Request, 3), 2},
	} {
		m, drop := b.hear(step.m)
		if drop != None {
			t.Fatalf("%s: %v", step.what, drop)
		}
		b.desk.send(m, b.routes, 1, false)
		if got := s.unanswered.Load(); got != step.want {
			t.Errorf("after %s: %d unanswered, want %d", step.what, got, step.want)
		}
	}
}
