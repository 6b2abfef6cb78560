package udp

import (
	"net/netip"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/tinkerbell/stack/internal/testwait"
)

// Clients from outside of the sources get no session. One that has its session keeps it when the sources change.
func TestSources(t *testing.T) {
	l := newLab(t)
	echo(t, l.server, serverIP+":5000")
	f := l.front(t, Config{
		Pick:    to(serverIP + ":5000"),
		Sources: []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24"), netip.MustParsePrefix(clientIP + "/32")},
	})
	inside := listen(t, l.client, clientIP+":6000")
	exchange(t, inside, []byte("a"), proxyIP+":5000")
	outside := listen(t, l.client, "[2001:db8:1::1]:6000")
	ask := func(n float64) {
		t.Helper()
		if _, err := outside.WriteToUDPAddrPort([]byte("b"), netip.MustParseAddrPort("["+proxy6+"]:5000")); err != nil {
			t.Fatal(err)
		}
		testwait.Until(t, "dropped", func() bool { return counter(f.handler.meters.drops[DropSource]) == n })
	}
	ask(1)
	f.Update(Config{Sources: []netip.Prefix{netip.MustParsePrefix("2001:db8:1::/64")}})
	exchange(t, outside, []byte("c"), "["+proxy6+"]:5000")
	exchange(t, inside, []byte("d"), proxyIP+":5000")
	f.Update(Config{})
	exchange(t, listen(t, l.client, clientIP+":6001"), []byte("e"), proxyIP+":5000")
}

// A front listens at an address before this host has it, and serves when it comes.
func TestFreebind(t *testing.T) {
	for _, address := range []string{"192.0.2.77/32", "2001:db8:1::77/128"} {
		l := newLab(t)
		echo(t, l.server, serverIP+":5000")
		prefix := netip.MustParsePrefix(address)
		at := netip.AddrPortFrom(prefix.Addr(), 5000)
		if _, err := l.listenAt(t, Config{Pick: to(serverIP + ":5000")}, at); err == nil {
			t.Errorf("listens at %s, which nobody has", at)
		}
		if _, err := l.listenAt(t, Config{Pick: to(serverIP + ":5000"), Freebind: true}, at); err != nil {
			t.Fatal(err)
		}
		l.proxy.Addr(t, "p0", address)
		family := clientIP + ":6000"
		if at.Addr().Is6() {
			family = "[2001:db8:1::1]:6000"
		}
		exchange(t, listen(t, l.client, family), []byte("a"), at.String())
	}
}

// Sessions towards an endpoint that is gone end; their clients' next datagrams are another endpoint's.
func TestCloseTo(t *testing.T) {
	l := newLab(t)
	echo(t, l.server, serverIP+":5000")
	echo(t, l.server, "198.51.100.3:5000")
	gone, stays := netip.MustParseAddrPort(serverIP+":5000"), netip.MustParseAddrPort("198.51.100.3:5000")
	next := make(chan netip.AddrPort, 3)
	next <- gone
	next <- stays
	next <- stays
	f := l.front(t, Config{Pick: func(netip.Addr) (netip.AddrPort, error) { return <-next, nil }})
	a, b := listen(t, l.client, clientIP+":6000"), listen(t, l.client, clientIP+":6001")
	exchange(t, a, []byte("a"), proxyIP+":5000")
	exchange(t, b, []byte("b"), proxyIP+":5000")
	f.CloseTo(func(e netip.AddrPort) bool { return e == gone })
	testwait.Until(t, "one session", func() bool { return f.Sessions() == 1 })
	exchange(t, b, []byte("b"), proxyIP+":5000")
	exchange(t, a, []byte("a"), proxyIP+":5000")
	if len(next) > 0 {
		t.Error("the session that was closed has not begun anew")
	}
}

// Nothing of a route is left in the metrics when it is forgotten.
func TestForget(t *testing.T) {
	m := NewMetrics(prometheus.NewRegistry())
	m.of("gone")
	m.of("stays")
	before := testutil.CollectAndCount(m.drops)
	m.Forget("gone")
	if after := testutil.CollectAndCount(m.drops); after*2 != before {
		t.Errorf("%d drops of %d are left", after, before)
	}
}
