package record

import (
	"hash/maphash"
	"net/netip"
	"testing"
	"time"
)

func TestBudgets(t *testing.T) {
	const at = int64(1e18)
	client := netip.MustParseAddr("192.0.2.7")
	b := budgets{seed: maphash.MakeSeed()}
	allowed := func(n int, client netip.Addr, at int64, status uint16, bytes uint64) (allowed int) {
		for range n {
			if b.allow(client, at, status, bytes) {
				allowed++
			}
		}
		return allowed
	}
	for _, step := range []struct {
		name   string
		client netip.Addr
		after  time.Duration
		status uint16
		bytes  uint64
		want   int
	}{
		{"at once", client, 0, 200, 300, clientBurst},
		{"more at once", client, 0, 200, 300, 0},
		{"failed", client, 0, 404, 300, 1000},
		{"long", client, 0, 200, LongAnswer, 1000},
		{"half a second later", client, 500 * time.Millisecond, 206, 300, clientRate / 2},
		{"the clock was set back", client, -time.Hour, 200, 300, clientBurst},
		{"another client", netip.MustParseAddr("2001:db8::1"), 0, 200, 300, clientBurst},
		{"an hour later", client, time.Hour, 200, 300, clientBurst},
		{"a client without an address", netip.Addr{}, 0, 200, 300, clientBurst},
	} {
		if got := allowed(1000, step.client, at+int64(step.after), step.status, step.bytes); got != step.want {
			t.Errorf("%s: %d of 1000 are told of, want %d", step.name, got, step.want)
		}
	}
	if b.spared.Load() == 0 {
		t.Error("nothing was spared")
	}
}
