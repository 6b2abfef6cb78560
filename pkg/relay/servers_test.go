package relay

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"time"
)

// TestServersAreLookedUpAgain: the incumbent resolves the server's name once, at start.
func TestServersAreLookedUpAgain(t *testing.T) {
	type answer struct {
		addresses []netip.Addr
		ttl       time.Duration
		err       error
	}
	first, second := netip.MustParseAddr("127.0.0.2"), netip.MustParseAddr("127.0.0.3")
	var now answer
	b := newBench(t, func(c *Config) {
		c.Servers = []string{"smee:6767"}
		c.UpstreamAddress = netip.Addr{}
		c.Lookup = func(context.Context, string) ([]netip.Addr, time.Duration, error) {
			return now.addresses, now.ttl, now.err
		}
	})
	server := b.health.servers[0]
	steps := []struct {
		what   string
		answer answer
		died   bool
		want   netip.Addr
		wait   time.Duration
	}{
		{what: "first", answer: answer{addresses: []netip.Addr{first}, ttl: 3 * time.Second}, want: first, wait: 3 * time.Second},
		{what: "moved", answer: answer{addresses: []netip.Addr{second}, ttl: time.Minute}, want: second, wait: defaultResolve},
		{what: "no name server", answer: answer{err: errors.New("timeout")}, want: second, wait: retryLookup},
		{what: "several", answer: answer{addresses: []netip.Addr{second, first}, ttl: time.Hour}, want: first, wait: defaultResolve},
		{what: "the first is dead", died: true, answer: answer{addresses: []netip.Addr{first, second}, ttl: time.Hour},
			want: second, wait: defaultResolve},
		{what: "IPv6 only", answer: answer{addresses: []netip.Addr{netip.IPv6Loopback()}, ttl: time.Hour}, want: second, wait: retryLookup},
	}
	for _, step := range steps {
		now = step.answer
		if step.died {
			b.health.died(server, 0, 20, b.now())
		}
		next, wait, _ := b.servers.lookup(t.Context()) // giaddr would be loopback here, which is its only complaint
		if len(next.targets) != 1 || next.targets[0].ip != step.want.As4() || next.targets[0].port != 6767 {
			t.Errorf("%s: got %v, want %v", step.what, next.targets, step.want)
		}
		if wait != step.wait {
			t.Errorf("%s: looks again in %v, want %v", step.what, wait, step.wait)
		}
		if wantDetour := step.died || step.what == "IPv6 only"; (len(next.targets) == 1 && next.targets[0].detour != nil) != wantDetour {
			t.Errorf("%s: detour is %v, want %v", step.what, !wantDetour, wantDetour)
		}
	}
	closeSocket(&b.servers.detour)
}
