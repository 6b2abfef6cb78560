package sock

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/pkg/proxy/loop"
)

// long is a timeout that only a hang reaches.
const long = 30 * time.Second

// owner notes what an acceptor asks of it.
type owner struct {
	admitted chan netip.AddrPort
	failed   func(error, time.Duration)
}

func (o *owner) Admit(fd int, peer netip.AddrPort) {
	_ = unix.Close(fd)
	o.admitted <- peer
}

func (o *owner) Failed(err error, pause time.Duration) { o.failed(err, pause) }

// startLoop runs a loop until the test ends.
func startLoop(t *testing.T) *loop.Loop {
	t.Helper()
	g := loop.NewGroup(1)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- g.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return g.Loops()[0]
}

// in calls f in the loop's thread and waits for it.
func in(t *testing.T, l *loop.Loop, f func()) {
	t.Helper()
	done := make(chan struct{})
	if !l.Do(func() { defer close(done); f() }) {
		t.Fatal("the loop has ended")
	}
	receive(t, done)
}

func receive[T any](t *testing.T, c <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(long):
		t.Fatal("nothing came")
	}
	return v
}

func listen(t *testing.T) *Listener {
	t.Helper()
	listener, err := Listen(netip.MustParseAddrPort("127.0.0.1:0"), false, Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(listener.Close)
	return listener
}

// TestAccept has two acceptors of one loop take connections of a socket each, until the context is done and they are
// stopped.
func TestAccept(t *testing.T) {
	l := startLoop(t)
	all := &owner{admitted: make(chan netip.AddrPort, 10)}
	listeners := []*Listener{listen(t), listen(t)}
	acceptors := []*Acceptor{NewAcceptor(l, listeners[0], all), NewAcceptor(l, listeners[1], all)}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- Accept(ctx, acceptors...) }()
	for _, listener := range listeners {
		conn, err := net.Dial("tcp", listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if got := receive(t, all.admitted); got != addrPort(conn.LocalAddr()) {
			t.Errorf("%s is admitted, want %s", got, conn.LocalAddr())
		}
	}
	cancel()
	if err := receive(t, ended); err != nil {
		t.Error(err)
	}
	in(t, l, func() {
		for _, a := range acceptors {
			a.Stop()
			if err := a.Begin(); err != nil || a.handle != (loop.Handle{}) && a.stopped == false {
				t.Errorf("a stopped acceptor begins: %v", err)
			}
		}
	})
	conn, err := net.Dial("tcp", listeners[0].Addr().String()) // waits in the kernel
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	in(t, l, func() {})
	if n := len(all.admitted); n > 0 {
		t.Errorf("%d connections are admitted by stopped acceptors", n)
	}
}

// Connections that wait while acceptors are stopped, as those of a loop that had no time for them, are not lost.
func TestAcceptTakesWhatWaits(t *testing.T) {
	l := startLoop(t)
	all := &owner{admitted: make(chan netip.AddrPort, 200)}
	listener := listen(t)
	const waiting = 2*acceptBatch + 1
	for range waiting {
		conn, err := net.Dial("tcp", listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // the acceptor is stopped right after it has begun
	if err := Accept(ctx, NewAcceptor(l, listener, all)); err != nil {
		t.Error(err)
	}
	if n := len(all.admitted); n != waiting {
		t.Errorf("%d of %d connections are admitted", n, waiting)
	}
}

// A failure to accept is told outside of the loop, so that a log which cannot be written holds nothing up, and each
// wait is longer until the longest.
func TestAcceptFails(t *testing.T) {
	l := startLoop(t)
	type failure struct {
		err   error
		pause time.Duration
	}
	failures, read := make(chan failure), make(chan struct{})
	var reported atomic.Int64
	o := &owner{failed: func(err error, pause time.Duration) {
		failures <- failure{err, pause}
		<-read
		reported.Add(1)
	}}
	a := NewAcceptor(l, &Listener{fd: -1}, o)
	in(t, l, func() { a.Ready(0) })
	for n := range 4 {
		got := receive(t, failures)
		in(t, l, func() {}) // the loop serves others while the log is blocked
		if !errors.Is(got.err, unix.EBADF) {
			t.Errorf("failed by %v", got.err)
		}
		if most := acceptPause << n; got.pause < most/2 || got.pause > most {
			t.Errorf("failure %d pauses for %v, want %v to %v", n, got.pause, most/2, most)
		}
		if n == 3 {
			in(t, l, a.Stop)
		}
		go func() { read <- struct{}{} }()
	}
	a.Wait()
	if n := reported.Load(); n != 4 {
		t.Errorf("%d failures are reported when the acceptor has ended, want 4", n)
	}
}

// A stopped acceptor reports nothing more.
func TestAcceptFailsAndStops(t *testing.T) {
	l := startLoop(t)
	failures := make(chan error, 1)
	a := NewAcceptor(l, &Listener{fd: -1}, &owner{failed: func(err error, _ time.Duration) { failures <- err }})
	in(t, l, func() {
		a.Ready(0)
		a.Stop()
	})
	time.Sleep(10 * acceptPause) // the pause ends meanwhile
	in(t, l, func() {})
	a.Wait()
	if len(failures) > 0 {
		t.Errorf("a stopped acceptor reports %v", <-failures)
	}
}

// A network error of one connection does not pause the listener. A UDP socket gives such an error (EOPNOTSUPP).
func TestAcceptFailsForOneConnection(t *testing.T) {
	l := startLoop(t)
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	a := NewAcceptor(l, &Listener{fd: fd}, &owner{failed: func(err error, _ time.Duration) { t.Error(err) }})
	in(t, l, func() {
		if err := a.Begin(); err != nil {
			t.Error(err)
		}
		a.Ready(0)
		if a.handle == (loop.Handle{}) {
			t.Error("the acceptor pauses")
		}
		a.Stop()
	})
	a.Wait()
}

// An acceptor of a loop that has ended fails.
func TestAcceptWithoutLoop(t *testing.T) {
	g := loop.NewGroup(1)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := g.Run(ctx); err != nil {
		t.Fatal(err)
	}
	a := NewAcceptor(g.Loops()[0], listen(t), &owner{})
	if err := Accept(t.Context(), a); err == nil {
		t.Error("an ended loop accepts")
	}
	a.Stop()
}
