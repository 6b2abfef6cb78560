package tcp

import (
	"context"
	"log/slog"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/pkg/endpoint"
)

// TestManyLeave has many connections leave at a time: others get their turn in between.
func TestManyLeave(t *testing.T) {
	defer func(before time.Duration) { youngAge = before }(youngAge)
	youngAge = time.Hour
	group := loops(t)
	pool := endpoint.NewPool(endpoint.Config{Sources: []endpoint.Source{endpoint.Fixed(backend(t, echo))}})
	f, err := Listen(Config{
		Listen: netip.MustParseAddrPort("127.0.0.1:0"), Settings: Settings{Pool: pool, Drain: 20 * time.Second}, Loops: group,
	})
	if err != nil {
		t.Fatal(err)
	}
	n := &nursery{front: f, loop: group.Loops()[0], life: t.Context()}
	in := func(do func()) {
		done := make(chan struct{})
		n.loop.Do(func() { defer close(done); do() })
		<-done
	}
	here := func() (count int) {
		for y := n.oldest; y != nil; y = y.younger {
			count++
		}
		return count
	}
	in(func() { err = n.open() })
	if err != nil {
		t.Fatal(err)
	}
	defer f.drain() // behind the clients
	defer f.listener.close()
	defer n.close()
	const all = 4 * leaveBatch
	for range all {
		conn := running{Front: f}.dial(t)
		_, _ = conn.Write([]byte("x"))
		if n, err := conn.Read(make([]byte, 1)); n != 1 {
			t.Fatal(err)
		}
		defer conn.Close()
	}
	in(func() {
		n.look(time.Now().Add(2 * time.Hour))
		if left := here(); left != all-leaveBatch {
			t.Errorf("%d of %d connections left in one turn", all-left, all)
		}
	})
	for deadline, left := time.Now().Add(20*time.Second), all; left > 0; {
		if time.Now().After(deadline) {
			t.Fatalf("%d connections stay", left)
		}
		in(func() { left = here() })
	}
}

// blocked is a log that nobody reads.
type blocked struct {
	slog.Handler
	asked, read chan struct{}
}

func (b blocked) Handle(context.Context, slog.Record) error {
	b.asked <- struct{}{}
	<-b.read
	return nil
}

// TestLogBlocks has nobody read the log: where no connection can be taken, the loop goes on with those it has.
func TestLogBlocks(t *testing.T) {
	log := blocked{slog.Default().Handler(), make(chan struct{}, 1), make(chan struct{})}
	group := loops(t)
	f, err := Listen(Config{
		Listen: netip.MustParseAddrPort("127.0.0.1:0"), Logger: slog.New(log), Loops: group,
		Settings: Settings{Pool: endpoint.NewPool(endpoint.Config{})},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer f.listener.close()
	n := &nursery{front: f, loop: group.Loops()[0], life: t.Context()}
	rested := make(chan struct{})
	n.loop.Do(func() { defer close(rested); n.rest(unix.EMFILE) })
	<-log.asked
	select {
	case <-rested:
	case <-time.After(20 * time.Second):
		t.Error("the loop waits for the log")
	}
	close(log.read)
	n.close()
}
