package datagram

import (
	"net/netip"
	"testing"
)

// One IPv6 machine has as many addresses as it likes: it gets half of the table, and others the rest.
func TestLimitsOfANetwork(t *testing.T) {
	l := NewLimits(100, 10)
	taken := 0
	var clients []netip.Addr
	for a := netip.MustParseAddr("2001:db8:1::1"); len(clients) < 200; a = a.Next() {
		clients = append(clients, a)
		if l.Acquire(a) == RefusedNot {
			taken++
		}
	}
	if taken != 50 {
		t.Errorf("one /64 holds %d places of 100", taken)
	}
	for _, other := range []string{"2001:db8:2::1", "192.0.2.1"} {
		if got := l.Acquire(netip.MustParseAddr(other)); got != RefusedNot {
			t.Errorf("%s: refused, %v", other, got)
		}
		l.Release(netip.MustParseAddr(other))
	}
	for _, a := range clients[:taken] {
		l.Release(a)
	}
	if l.Len() != 0 || len(l.clients) != 0 || len(l.networks) != 0 {
		t.Errorf("%d places, %d clients and %d networks are left", l.Len(), len(l.clients), len(l.networks))
	}
}
