package boot

import (
	"net/netip"
	"testing"
	"time"
)

func TestBudgets(t *testing.T) {
	const at = int64(1e18)
	client := netip.MustParseAddr("192.0.2.7")
	b := NewBudgets()
	allowed := func(n int, client netip.Addr, at int64, status int, bytes uint64) (allowed int) {
		for range n {
			if b.Allow(client, at, status, bytes) {
				allowed++
			}
		}
		return allowed
	}
	for _, step := range []struct {
		name   string
		client netip.Addr
		after  time.Duration
		status int
		bytes  uint64
		want   int
	}{
		{"at once", client, 0, 200, 300, clientBurst},
		{"more at once", client, 0, 200, 300, 0},
		{"failed", client, 0, 404, 300, 1000},
		{"long", client, 0, 200, LongAnswer, 1000},
		{"half a second later", client, 500 * time.Millisecond, 206, 300, clientRate / 2},
		{"in the past", client, -time.Hour, 200, 300, 0},
		{"another client", netip.MustParseAddr("2001:db8::1"), 0, 200, 300, clientBurst},
		{"an hour later", client, time.Hour, 200, 300, clientBurst},
		{"a client without an address", netip.Addr{}, 0, 200, 300, clientBurst},
	} {
		if got := allowed(1000, step.client, at+int64(step.after), step.status, step.bytes); got != step.want {
			t.Errorf("%s: %d of 1000 are told of, want %d", step.name, got, step.want)
		}
	}
	if b.Spared() == 0 || !(*Budgets)(nil).Allow(client, at, 200, 0) {
		t.Errorf("%d spared", b.Spared())
	}
}

func BenchmarkBudget(b *testing.B) {
	budgets, client := NewBudgets(), netip.MustParseAddr("192.0.2.7")
	b.ReportAllocs()
	for at := int64(0); b.Loop(); at += 1000 {
		budgets.Allow(client, at, 200, 300)
	}
}
