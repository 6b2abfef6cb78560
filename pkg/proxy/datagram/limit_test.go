package datagram

import (
	"net/netip"
	"testing"
	"time"

	"github.com/tinkerbell/stack/internal/nstest"
)

// table is a worker with sessions towards an endpoint where nobody listens, at a time that the test decides.
func table(t *testing.T, total, perClient int) *Worker[int] {
	t.Helper()
	var w *Worker[int]
	ns := nstest.New(t)
	ns.Do(t, func() error {
		listener, err := Listen(netip.MustParseAddrPort("127.0.0.1:69"))
		if err != nil {
			return err
		}
		w, err = NewWorker[int](listener, &echoes{closed: map[End]int{}}, Options{
			Limits: NewLimits(Bounds{MaxSessions: total, MaxSessionsPerClient: perClient, Idle: time.Hour, Linger: time.Hour}),
			Pick:   func(netip.Addr) (netip.AddrPort, error) { return netip.MustParseAddrPort("127.0.0.1:70"), nil },
		})
		if err != nil {
			return err
		}
		w.now = time.Unix(1000, 0)
		return nil
	})
	t.Cleanup(func() {
		w.closeAll()
		if n := w.options.Limits.Len(); n != 0 || len(w.clients)+len(w.networks)+w.all.n+w.live.n != 0 {
			t.Errorf("%d sessions, %d clients and %d networks are left", n, len(w.clients), len(w.networks))
		}
		w.Close()
	})
	return w
}

func (w *Worker[T]) from(client string) (*Session[T], Drop) {
	s, refusal, _ := w.Open(Datagram{Client: Peer{AddrPort: netip.MustParseAddrPort(client)}})
	return s, refusal
}

func TestLimits(t *testing.T) {
	w := table(t, 3, 2)
	for _, tt := range []struct {
		client string
		want   Drop
	}{
		{"192.0.2.1:1", NotDropped}, {"192.0.2.1:2", NotDropped}, {"192.0.2.1:3", DropClientLimit},
		{"192.0.2.2:1", NotDropped}, {"192.0.2.3:1", DropTableFull},
		{"192.0.2.1:3", NotDropped}, {"192.0.2.3:1", NotDropped}, // the second time, in place of others
		{"192.0.2.1:4", DropTableFull},
	} {
		if _, got := w.from(tt.client); got != tt.want {
			t.Errorf("%s: refusal %d, want %d", tt.client, got, tt.want)
		}
	}
	if w.options.Limits.Len() != 3 {
		t.Errorf("%d sessions of 3", w.options.Limits.Len())
	}
	// Whoever was silent for long gives way at once.
	w.now = w.now.Add(5 * time.Second)
	if _, got := w.from("192.0.2.4:1"); got != NotDropped {
		t.Errorf("refusal %d with a table of silent sessions", got)
	}
	// A bound that was lowered is reached by and by.
	w.options.Limits.Set(Bounds{MaxSessions: 1, MaxSessionsPerClient: 1})
	for i, client := range []string{"192.0.2.5:1", "192.0.2.6:1", "192.0.2.7:1"} {
		w.now = w.now.Add(5 * time.Second)
		if _, got := w.from(client); got != NotDropped {
			t.Errorf("refusal %d", got)
		}
		if want := []int{2, 1, 1}[i]; w.options.Limits.Len() != want {
			t.Errorf("%d sessions, want %d", w.options.Limits.Len(), want)
		}
	}
}

// One IPv6 machine has as many addresses as it likes: it gets half of the table, and others the rest.
func TestLimitsOfANetwork(t *testing.T) {
	w := table(t, 100, 10)
	a := netip.MustParseAddr("2001:db8:1::1")
	for range 200 {
		w.from(netip.AddrPortFrom(a, 1).String())
		a = a.Next()
	}
	if n := w.options.Limits.Len(); n != 50 {
		t.Errorf("one /64 holds %d places of 100", n)
	}
	for _, other := range []string{"[2001:db8:2::1]:1", "192.0.2.1:1"} {
		if _, got := w.from(other); got != NotDropped {
			t.Errorf("%s: refused, %v", other, got)
		}
	}
	// Within the network a machine that moves keeps its place, and one that asks again gets one.
	moving, _ := w.from("[2001:db8:2::2]:1")
	for range 100 {
		w.Step(moving)
	}
	for range 2 {
		for a := netip.MustParseAddr("2001:db8:2::1000"); a.Compare(netip.MustParseAddr("2001:db8:2::1100")) < 0; a = a.Next() {
			w.from(netip.AddrPortFrom(a, 1).String())
		}
	}
	if moving.socket == nil {
		t.Error("a flood of its network ended a transfer")
	}
	if _, got := w.from("[2001:db8:2::3]:1"); got != DropClientLimit {
		t.Errorf("the first request: refusal %d", got)
	}
	if _, got := w.from("[2001:db8:2::3]:1"); got != NotDropped {
		t.Errorf("the second request: refusal %d", got)
	}
}
