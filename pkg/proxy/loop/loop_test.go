package loop_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/pkg/proxy/loop"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// long is for what must come, however slow the machine is.
const long = 30 * time.Second

// watcher passes events on.
type watcher func(loop.Events)

func (w watcher) Ready(e loop.Events) { w(e) }

// start runs a group of one loop until the test ends.
func start(t *testing.T) *loop.Loop {
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
	await(t, done)
}

func await[T any](t *testing.T, c <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(long):
		t.Fatal("nothing came")
	}
	return v
}

func pair(t *testing.T) (a, b int) {
	t.Helper()
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	return ends[0], ends[1]
}

func TestStreamIsReportedOncePerChange(t *testing.T) {
	l := start(t)
	a, b := pair(t)
	defer unix.Close(a)
	events := make(chan loop.Events, 10)
	in(t, l, func() {
		if _, err := l.Watch(a, loop.Stream, watcher(func(e loop.Events) { events <- e })); err != nil {
			t.Error(err)
		}
	})
	if _, err := unix.Write(b, []byte("x")); err != nil {
		t.Fatal(err)
	}
	if e := await(t, events); !e.Readable() || e.Last() || e.Writable() {
		t.Errorf("a byte is reported as %x", e)
	}
	in(t, l, func() {}) // the loop waits again, and does not report the unread byte again
	if len(events) > 0 {
		t.Errorf("a byte is reported twice")
	}
	if err := unix.Close(b); err != nil {
		t.Fatal(err)
	}
	if e := await(t, events); !e.Readable() || !e.Last() {
		t.Errorf("an end is reported as %x", e)
	}
}

// TestForgottenSocket forgets a socket of which the loop has an event already, and watches another one in its
// slot: the event is not the other's.
func TestForgottenSocket(t *testing.T) {
	l := start(t)
	var sockets [3]int
	var peers [3]int
	for i := range sockets {
		sockets[i], peers[i] = pair(t)
		defer unix.Close(sockets[i])
		defer unix.Close(peers[i])
	}
	var handles [2]loop.Handle
	told, wrong := 0, false
	in(t, l, func() {
		for i := range handles {
			handles[i], _ = l.Watch(sockets[i], loop.Stream, watcher(func(loop.Events) {
				if told++; told > 1 {
					return // as the test ends, the peers do
				}
				other := 1 - i
				l.Release(sockets[other], handles[other])
				if _, err := l.Watch(sockets[2], loop.Stream, watcher(func(loop.Events) { wrong = true })); err != nil {
					t.Error(err)
				}
			}))
			// Before the loop waits again, so that it gets both events at once.
			_, _ = unix.Write(peers[i], []byte("x"))
		}
	})
	in(t, l, func() {})
	in(t, l, func() {
		if told != 1 || wrong {
			t.Errorf("%d of two sockets were told, the third: %v", told, wrong)
		}
		for i := range handles { // their peers are closed before them, which would be told, too
			l.Release(sockets[i], handles[i])
		}
	})
}

func TestReleasedSocketIsNotReported(t *testing.T) {
	l := start(t)
	a, b := pair(t)
	defer unix.Close(a)
	defer unix.Close(b)
	var told atomic.Bool
	in(t, l, func() {
		h, err := l.Watch(a, loop.Stream, watcher(func(loop.Events) { told.Store(true) }))
		if err != nil {
			t.Error(err)
		}
		l.Release(a, h)
		l.Forget(h) // forgotten already
	})
	if _, err := unix.Write(b, []byte("x")); err != nil {
		t.Fatal(err)
	}
	in(t, l, func() {})
	if told.Load() {
		t.Error("a released socket is reported")
	}
	// Its slot is free once, not twice.
	in(t, l, func() {
		first, err := l.Watch(a, loop.Stream, watcher(func(loop.Events) {}))
		second, other := l.Watch(b, loop.Stream, watcher(func(loop.Events) {}))
		if err != nil || other != nil || first == second {
			t.Errorf("two sockets are %v and %v: %v, %v", first, second, err, other)
		}
	})
}

func TestWatchFails(t *testing.T) {
	l := start(t)
	in(t, l, func() {
		if h, err := l.Watch(-1, loop.Stream, watcher(func(loop.Events) {})); !errors.Is(err, unix.EBADF) ||
			h != (loop.Handle{}) {
			t.Errorf("no descriptor is watched as %v: %v", h, err)
		}
		l.Forget(loop.Handle{})
	})
}

func TestTick(t *testing.T) {
	l := start(t)
	calls, added := 0, false
	done := make(chan int)
	in(t, l, func() {
		began := time.Now()
		l.Tick(func(now time.Time) bool {
			calls++
			if now.Sub(began) < loop.Tick*time.Duration(calls)-10*time.Millisecond {
				t.Errorf("call %d after %v", calls, now.Sub(began))
			}
			if calls == 1 { // one that comes behind, and ends at once
				l.Tick(func(time.Time) bool { added = true; return false })
			}
			if calls == 3 {
				if !added {
					t.Error("the second function was not called")
				}
				go func() { done <- calls }()
			}
			return calls < 3
		})
	})
	await(t, done)
	in(t, l, func() {
		if calls != 3 {
			t.Errorf("%d calls, want 3", calls)
		}
	})
}

// TestDo asks before the loop runs, while, and after.
func TestDo(t *testing.T) {
	g := loop.NewGroup(2)
	if n := len(g.Loops()); n != 2 {
		t.Fatalf("%d loops", n)
	}
	l := g.Loops()[1]
	early := make(chan struct{})
	l.Do(func() { close(early) })
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- g.Run(ctx) }()
	await(t, early)
	var asked, called atomic.Int64
	asking := make(chan struct{})
	go func() {
		defer close(asking)
		for l.Do(func() { called.Add(1) }) {
			if asked.Add(1) == 1000 {
				cancel()
			}
		}
	}()
	if err := await(t, done); err != nil {
		t.Error(err)
	}
	await(t, asking)
	if asked.Load() != called.Load() {
		t.Errorf("%d of %d calls", called.Load(), asked.Load())
	}
	var none *loop.Group
	if none.Loops() != nil || len(loop.NewGroup(0).Loops()) < 1 {
		t.Error("a nil group has loops, or a usual one has none")
	}
}

// TestListening has two loops take the connections of one socket.
func TestListening(t *testing.T) {
	g := loop.NewGroup(2)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- g.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := errors.Join(unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}), unix.Listen(fd, 100)); err != nil {
		t.Fatal(err)
	}
	accepted := make(chan error, 100)
	for _, l := range g.Loops() {
		in(t, l, func() {
			if _, err := l.Watch(fd, loop.Listening, watcher(func(loop.Events) {
				conn, _, err := unix.Accept4(fd, unix.SOCK_CLOEXEC)
				if errors.Is(err, unix.EAGAIN) {
					return // the other one was first
				}
				_ = unix.Close(conn)
				accepted <- err
			})); err != nil {
				t.Error(err)
			}
		})
	}
	at, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	for range 50 {
		c, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err == nil {
			err = unix.Connect(c, at)
		}
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(c)
	}
	for range 50 {
		if err := await(t, accepted); err != nil {
			t.Fatal(err)
		}
	}
}

// TestGroupFails has descriptors for one of two loops at most: the group ends with an error instead of running with
// one.
func TestGroupFails(t *testing.T) {
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	next, err := unix.Dup(0) // the lowest that is free
	if err != nil {
		t.Fatal(err)
	}
	_ = unix.Close(next)
	few := before
	few.Cur = uint64(next) + 2
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &few); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Setrlimit(unix.RLIMIT_NOFILE, &before) }()
	g := loop.NewGroup(2)
	done := make(chan error, 1)
	go func() { done <- g.Run(context.Background()) }()
	if err := await(t, done); !errors.Is(err, unix.EMFILE) {
		t.Errorf("Run() = %v", err)
	}
	for _, l := range g.Loops() {
		await(t, l.Ended())
		if l.Do(func() {}) {
			t.Error("an ended loop does something")
		}
	}
}

// TestEndedLoop has several goroutines give up sockets of a loop that has ended, as the drains of several fronts do:
// nothing is touched then.
func TestEndedLoop(t *testing.T) {
	g := loop.NewGroup(1)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- g.Run(ctx) }()
	l := g.Loops()[0]
	var handles [8]loop.Handle
	var sockets [8]int
	in(t, l, func() {
		for i := range handles {
			var err error
			var peer int
			sockets[i], peer = pair(t)
			defer unix.Close(peer)
			if handles[i], err = l.Watch(sockets[i], loop.Stream, watcher(func(loop.Events) {})); err != nil {
				t.Error(err)
			}
		}
	})
	cancel()
	if err := await(t, done); err != nil {
		t.Error(err)
	}
	<-l.Ended()
	var running sync.WaitGroup
	for i := range handles {
		running.Go(func() {
			l.Forget(handles[i])
			l.Release(sockets[i], handles[i])
			if h, err := l.Watch(sockets[i], loop.Stream, watcher(func(loop.Events) {})); err == nil || h != (loop.Handle{}) {
				t.Errorf("an ended loop watches a socket as %v", h)
			}
			_ = unix.Close(sockets[i])
		})
	}
	running.Wait()
}
