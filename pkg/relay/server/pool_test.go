package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/tinkerbell/stack/internal/loglimit"
)

// newPool is a pool whose clock stands still.
func newPool(change func(*Config)) *Pool {
	logger := slog.New(slog.DiscardHandler)
	config := Config{
		Names: []string{"10.244.0.11"}, Port: 67, ResolveInterval: 10 * time.Second, DeadAfter: 20,
		Crowded: func(int64) bool { return false }, Publish: func(*Targets) {},
		Clock: func() int64 { return 1 }, Wall: func(int64) time.Time { return time.Now() },
		Logger: logger, LogLimiter: loglimit.New(logger, 1, time.Minute), Metrics: NewMetrics("test"),
	}
	change(&config)
	return New(config)
}

// TestServersAreLookedUpAgain: the incumbent resolves the server's name once, at start.
func TestServersAreLookedUpAgain(t *testing.T) {
	type answer struct {
		addresses []netip.Addr
		ttl       time.Duration
		err       error
	}
	first, second := netip.MustParseAddr("127.0.0.2"), netip.MustParseAddr("127.0.0.3")
	var now answer
	p := newPool(func(c *Config) {
		c.Names = []string{"smee:6767"}
		c.Lookup = func(context.Context, string) ([]netip.Addr, time.Duration, error) {
			return now.addresses, now.ttl, now.err
		}
	})
	server := p.servers[0]
	steps := []struct {
		what   string
		answer answer
		died   bool
		want   netip.Addr
		wait   time.Duration
	}{
		{what: "first", answer: answer{addresses: []netip.Addr{first}, ttl: 3 * time.Second}, want: first, wait: 3 * time.Second},
		{what: "moved", answer: answer{addresses: []netip.Addr{second}, ttl: time.Minute}, want: second, wait: 10 * time.Second},
		{what: "no name server", answer: answer{err: errors.New("timeout")}, want: second, wait: retryLookup},
		{what: "several", answer: answer{addresses: []netip.Addr{second, first}, ttl: time.Hour}, want: first, wait: 10 * time.Second},
		{what: "the first is dead", died: true, answer: answer{addresses: []netip.Addr{first, second}, ttl: time.Hour},
			want: second, wait: 10 * time.Second},
		{what: "IPv6 only", answer: answer{addresses: []netip.Addr{netip.IPv6Loopback()}, ttl: time.Hour}, want: second, wait: retryLookup},
	}
	for _, step := range steps {
		now = step.answer
		if step.died {
			p.died(server, 0, 20, 1)
		}
		next, wait, _ := p.lookup(t.Context()) // giaddr would be loopback here, which is its only complaint
		if len(next.All) != 1 || next.All[0].Addr != netip.AddrPortFrom(step.want, 6767) {
			t.Errorf("%s: got %v, want %v", step.what, next.All, step.want)
		}
		if wait != step.wait {
			t.Errorf("%s: looks again in %v, want %v", step.what, wait, step.wait)
		}
		if wantDetour := step.died || step.what == "IPv6 only"; (len(next.All) == 1 && next.All[0].Detour != nil) != wantDetour {
			t.Errorf("%s: detour is %v, want %v", step.what, !wantDetour, wantDetour)
		}
	}
	closeSocket(&p.detour)
}

// TestFamilyOfAddresses: a pool takes the addresses of its family only, and asks its own detour's.
func TestFamilyOfAddresses(t *testing.T) {
	four, six := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")
	for _, ipv6 := range []bool{false, true} {
		p := newPool(func(c *Config) {
			c.Names, c.IPv6 = []string{"smee"}, ipv6
			c.Lookup = func(context.Context, string) ([]netip.Addr, time.Duration, error) {
				return []netip.Addr{six, four}, time.Second, nil
			}
		})
		p.servers[0].detour = true
		next, _, _ := p.lookup(t.Context()) // there may be no route to either here
		want := map[bool]netip.Addr{false: four, true: six}[ipv6]
		if len(next.All) != 1 || next.All[0].Addr.Addr() != want || next.All[0].Detour == nil {
			t.Errorf("IPv6 %v: got %v", ipv6, next.All)
		}
		closeSocket(&p.detour)
	}
}

// TestReadyWithoutANameThatNobodyHas: where the name does not exist, it does not for any replica, and what else the pod
// serves is not to leave the Service with it. A name server that does not answer may be this node's alone.
func TestReadyWithoutANameThatNobodyHas(t *testing.T) {
	errAbsent := errors.New("no such name")
	for name, test := range map[string]struct {
		optional bool
		faults   map[string]error
		ready    bool
	}{
		"needed":                      {false, map[string]error{"smee": errAbsent}, false},
		"optional":                    {true, map[string]error{"smee": errAbsent}, true},
		"no name server":              {true, map[string]error{"smee": errors.New("timeout")}, false},
		"one without, one not looked": {true, map[string]error{"smee": errAbsent, "kea": errors.New("timeout")}, false},
		"neither exists":              {true, map[string]error{"smee": errAbsent, "kea": errAbsent}, true},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPool(func(c *Config) {
				c.Names, c.NoName, c.Optional = slices.Sorted(maps.Keys(test.faults)), errAbsent, test.optional
				c.Lookup = func(_ context.Context, host string) ([]netip.Addr, time.Duration, error) {
					return nil, 0, fmt.Errorf("failed to look up: %w", test.faults[host])
				}
			})
			if p.Ready() == nil {
				t.Error("ready before it has looked")
			}
			next, _, err := p.lookup(t.Context())
			p.set(next, err)
			if (p.Ready() == nil) != test.ready {
				t.Errorf("ready says %v", p.Ready())
			}
		})
	}
}
