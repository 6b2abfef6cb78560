package tcp

import (
	"io"
	"net"
	"net/netip"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/tinkerbell/stack/internal/nstest"
	"github.com/tinkerbell/stack/pkg/endpoint"
)

// A connection from outside of the sources is reset, and is not counted as a connection. An open connection stays when
// the sources change.
func TestSources(t *testing.T) {
	s := Settings{Sources: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}}
	r := start(t, s, backend(t, echo))
	open := r.dial(t)
	pass(t, open)
	s.Pool, s.Sources = r.settings.Load().Pool, []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}
	r.Update(s)
	if err := r.refusal(); err == nil {
		t.Error("a connection from outside of the sources has ended in order")
	}
	if n := testutil.ToFloat64(r.refusals.WithLabelValues("r", "source")); n != 1 {
		t.Errorf("counted %v refused for their source, want 1", n)
	}
	if n := testutil.ToFloat64(r.connections.WithLabelValues("r")); n != 1 {
		t.Errorf("counted %v connections, want 1", n)
	}
	pass(t, open)
}

// pass sends a byte there and back.
func pass(t *testing.T, conn net.Conn) {
	t.Helper()
	if _, err := conn.Write([]byte("a")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(conn, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
}

// A front listens at an address before this host has it.
func TestFreebind(t *testing.T) {
	ns := nstest.New(t)
	pool := endpoint.NewPool(endpoint.Config{Route: "r"})
	for _, at := range []string{"192.0.2.77:80", "[2001:db8::77]:80"} {
		c := Config{Listen: netip.MustParseAddrPort(at), Loops: loops(t), Settings: Settings{Pool: pool}}
		open := func() error {
			f, err := Listen(c)
			if err == nil {
				f.listener.Close()
			}
			return err
		}
		if err := ns.Try(open); err == nil {
			t.Errorf("listens at %s, which nobody has", at)
		}
		c.Freebind = true
		if err := ns.Try(open); err != nil {
			t.Error(err)
		}
	}
}

// The metrics have nothing of a route that was forgotten.
func TestForget(t *testing.T) {
	registry := prometheus.NewRegistry()
	m := NewMetrics(registry)
	m.route("gone").dials.WithLabelValues("refused").Inc()
	m.Forget("gone")
	if n, err := testutil.GatherAndCount(registry); err != nil || n != 0 {
		t.Errorf("%d are left, %v", n, err)
	}
}
