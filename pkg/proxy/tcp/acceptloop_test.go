package tcp

import (
	"net/netip"
	"testing"
	"time"

	"github.com/tinkerbell/stack/pkg/endpoint"
)

// TestHandOffsInBatches hands many connections off at a time: the loop serves other sockets between two batches.
func TestHandOffsInBatches(t *testing.T) {
	defer func(before time.Duration) { loopAge = before }(loopAge)
	loopAge = time.Hour
	group := loops(t)
	pool := endpoint.NewPool(endpoint.Config{Sources: []endpoint.Source{endpoint.Fixed(backend(t, echo))}})
	f, err := Listen(Config{
		Listen: netip.MustParseAddrPort("127.0.0.1:0"), Settings: Settings{Pool: pool, Drain: 20 * time.Second}, Loops: group,
	})
	if err != nil {
		t.Fatal(err)
	}
	a := f.newAcceptLoop(t.Context(), group.Loops()[0])
	in := func(do func()) {
		done := make(chan struct{})
		a.loop.Do(func() { defer close(done); do() })
		<-done
	}
	here := func() (count int) {
		for l := a.sessions.First(); l != nil; l = l.byAge.Next() {
			count++
		}
		return count
	}
	in(func() { err = a.acceptor.Begin() })
	if err != nil {
		t.Fatal(err)
	}
	defer f.drain() // when the clients have closed
	defer f.listener.Close()
	defer a.close()
	const all = 4 * handOffBatch
	for range all {
		conn := running{Front: f}.dial(t)
		_, _ = conn.Write([]byte("x"))
		if n, err := conn.Read(make([]byte, 1)); n != 1 {
			t.Fatal(err)
		}
		defer conn.Close()
	}
	in(func() {
		a.tick(time.Now().Add(2 * time.Hour))
		if left := here(); left != all-handOffBatch {
			t.Errorf("%d of %d connections were handed off at once", all-left, all)
		}
	})
	for deadline, left := time.Now().Add(20*time.Second), all; left > 0; {
		if time.Now().After(deadline) {
			t.Fatalf("%d connections stay", left)
		}
		in(func() { left = here() })
	}
}
