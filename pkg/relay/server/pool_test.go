package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tinkerbell/stack/internal/loglimit"
	"github.com/tinkerbell/stack/internal/nstest"
)

// newPool is a pool whose clock stands still.
func newPool(change func(*Config)) *Pool {
	logger := slog.New(slog.DiscardHandler)
	config := Config{
		Names: []string{"10.244.0.11"}, Port: 67, ResolveInterval: 10 * time.Second, DeadAfter: 30,
		Publish: func(*Targets) {},
		Clock:   func() int64 { return 1 }, Wall: func(int64) time.Time { return time.Now() },
		Logger: logger, LogLimiter: loglimit.New(logger, 1, time.Minute), Metrics: NewMetrics(nil, "test"),
	}
	change(&config)
	return New(config)
}

// TestServersAreLookedUpAgain: the incumbent resolves the server's name once, at start.
func TestServersAreLookedUpAgain(t *testing.T) {
	type answer struct {
		addresses []netip.Addr
		err       error
	}
	first, other := netip.MustParseAddr("127.0.0.2"), netip.MustParseAddr("127.0.0.3")
	var now answer
	p := newPool(func(c *Config) {
		c.Names = []string{"smee:6767"}
		c.Lookup = func(context.Context, string) ([]netip.Addr, error) {
			return now.addresses, now.err
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
		{what: "first", answer: answer{addresses: []netip.Addr{first}}, want: first, wait: 10 * time.Second},
		{what: "moved", answer: answer{addresses: []netip.Addr{other}}, want: other, wait: 10 * time.Second},
		{what: "no name server", answer: answer{err: errors.New("timeout")}, want: other, wait: retryLookup},
		{what: "several", answer: answer{addresses: []netip.Addr{other, first}}, want: first, wait: 10 * time.Second},
		{what: "the first is dead", died: true, answer: answer{addresses: []netip.Addr{first, other}},
			want: other, wait: 10 * time.Second},
		{what: "IPv6 only", answer: answer{addresses: []netip.Addr{netip.IPv6Loopback()}}, want: other, wait: retryLookup},
	}
	for _, step := range steps {
		now = step.answer
		if step.died {
			asks(server, 1, 30)
			p.check(6 * second)
		}
		next, wait, _ := p.lookup(t.Context()) // giaddr would be loopback here, which is its only complaint
		if len(next.All) != 1 || next.All[0].Addr != netip.AddrPortFrom(step.want, 6767) {
			t.Errorf("%s: got %v, want %v", step.what, next.All, step.want)
		}
		if wait != step.wait {
			t.Errorf("%s: looks again in %v, want %v", step.what, wait, step.wait)
		}
	}
}

// TestFamilyOfAddresses: a pool takes the addresses of its family only.
func TestFamilyOfAddresses(t *testing.T) {
	four, six := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")
	for _, ipv6 := range []bool{false, true} {
		p := newPool(func(c *Config) {
			c.Names, c.IPv6 = []string{"smee"}, ipv6
			c.Lookup = func(context.Context, string) ([]netip.Addr, error) {
				return []netip.Addr{six, four}, nil
			}
		})
		next, _, _ := p.lookup(t.Context()) // there may be no route to either here
		want := map[bool]netip.Addr{false: four, true: six}[ipv6]
		if len(next.All) != 1 || next.All[0].Addr.Addr() != want {
			t.Errorf("IPv6 %v: got %v", ipv6, next.All)
		}
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
				c.Lookup = func(_ context.Context, host string) ([]netip.Addr, error) {
					return nil, fmt.Errorf("failed to look up: %w", test.faults[host])
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

// TestServersThatCannotBe: the relay itself, and all of its network.
func TestServersThatCannotBe(t *testing.T) {
	ns := nstest.New(t)
	nstest.Veth(t, ns, "eth0", nstest.New(t), "eth0")
	ns.Addr(t, "eth0", "192.0.2.1/24")
	for at, want := range map[string]string{
		"192.0.2.1:67":   "this relay's own address",
		"192.0.2.255:67": "broadcast address of 192.0.2.1/24",
		"192.0.2.1:6767": "",
		"192.0.2.2:67":   "",
		"10.0.0.255:67":  "",
	} {
		p := newPool(func(c *Config) { c.Names = []string{at} })
		ns.Do(t, func() error {
			err := p.impossible(netip.MustParseAddrPort(at))
			if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
				t.Errorf("%s: got %v, want %q", at, err, want)
			}
			return nil
		})
	}
}
