// Package loop waits for many sockets with one thread.
//
// A goroutine for each connection is the plainer program, and what most of ours have. But to wake one takes Go's
// scheduler as long as the kernel needs to pass a small message on, and short exchanges are little else than being
// woken. A [Loop] is one goroutine that blocks in epoll_wait(2) and calls whoever watches the socket: it serves what
// can be done at once. Whatever has to wait for anything but its sockets does not belong here.
//
// Not its job: reading or writing, and knowing what the sockets are for.
package loop

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// batch is how many events one system call brings at most.
	batch = 128
	// bufferSize is that of a loop's scratch space, in bytes.
	bufferSize = 64 << 10
	// Tick is how often functions of [Loop.Tick] are called.
	Tick = 500 * time.Millisecond
)

// Events are what has happened to a socket.
type Events uint32

// Readable is whether there is something to be read, be it an end or an error.
func (e Events) Readable() bool {
	return e&(unix.EPOLLIN|unix.EPOLLPRI|unix.EPOLLRDHUP|unix.EPOLLHUP|unix.EPOLLERR) != 0
}

// Writable is whether the socket takes bytes, or has connected, or failed to.
func (e Events) Writable() bool { return e&(unix.EPOLLOUT|unix.EPOLLHUP|unix.EPOLLERR) != 0 }

// Last is whether the other end has ended its stream, or the connection is broken: there may be an end to be read
// behind the last bytes, for which there is no other event. Behind an urgent byte, at which a read ends (RFC 6093),
// there may be more in the same way.
func (e Events) Last() bool {
	return e&(unix.EPOLLPRI|unix.EPOLLRDHUP|unix.EPOLLHUP|unix.EPOLLERR) != 0
}

// Mode is how a socket is watched.
type Mode uint32

// Modes. Streams report each change once: their watcher reads until there is nothing left.
const (
	// Stream is readable.
	Stream Mode = unix.EPOLLIN | unix.EPOLLPRI | unix.EPOLLRDHUP | edge
	// Connecting is Stream, and connected.
	Connecting Mode = Stream | unix.EPOLLOUT
	// Listening reports for as long as connections wait, to one of the loops that watch the socket.
	Listening Mode = unix.EPOLLIN | unix.EPOLLEXCLUSIVE
)

// edge is EPOLLET, which unix has as a negative number.
const edge = 1 << 31

// Watcher is told of a socket's events, in the loop's thread. It must not wait for anything.
type Watcher interface{ Ready(Events) }

// Handle is a watched socket. The zero Handle is none.
type Handle struct{ index, generation int32 }

// Loop is one thread's. Its methods but [Loop.Do] are for that thread only: for watchers and what Do and Tick call.
type Loop struct {
	epoll  int
	slots  []slot
	free   []int32
	now    time.Time
	ticks  []func(now time.Time) (again bool)
	ticked time.Time
	turn   Turn
	buffer [bufferSize]byte
	events [batch]unix.EpollEvent

	mu    sync.Mutex
	wake  int // below 0 while nobody waits
	count [8]byte
	todo  []func()
	ended bool
	over  chan struct{}
}

// slot is what a handle stands for. Its generation tells events of its earlier sockets.
type slot struct {
	watcher    Watcher
	generation int32
}

// Group is the loops of a process.
type Group struct{ loops []*Loop }

// most loops that a group has; a core's worth of short exchanges is some 20,000 connections a second.
const most = 8

// NewGroup makes n loops; 0 is one for every two threads that run Go code: the others are for everything else.
func NewGroup(n int) *Group {
	if n <= 0 {
		n = min((runtime.GOMAXPROCS(0)+1)/2, most)
	}
	g := &Group{loops: make([]*Loop, n)}
	for i := range g.loops {
		// Handles begin at index 1: the events of 0 are the loop's own.
		g.loops[i] = &Loop{epoll: -1, wake: -1, slots: make([]slot, 1), over: make(chan struct{})}
	}
	return g
}

// Loops are all of them; none of a nil group.
func (g *Group) Loops() []*Loop {
	if g == nil {
		return nil
	}
	return g.loops
}

// Run runs the loops until ctx is done, or one of them fails. Who watches sockets until then is told nothing more.
func (g *Group) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var running sync.WaitGroup
	failures := make([]error, len(g.loops))
	for i, l := range g.loops {
		running.Go(func() {
			defer cancel()
			failures[i] = l.run(ctx)
		})
	}
	running.Wait()
	return errors.Join(failures...)
}

// Do has the loop call f soon, in its thread; at once if it has not begun yet, as it begins. It is false when the loop
// has ended: f will not be called then.
func (l *Loop) Do(f func()) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return false
	}
	l.todo = append(l.todo, f)
	if l.wake >= 0 {
		_, _ = unix.Write(l.wake, []byte{1, 0, 0, 0, 0, 0, 0, 0}) // fails only when it is awake already
	}
	return true
}

// Ended is closed when the loop is over. What is its thread's is whoever's who sees that.
func (l *Loop) Ended() <-chan struct{} { return l.over }

// Now is when the loop was woken last.
func (l *Loop) Now() time.Time { return l.now }

// Buffer is scratch space for whoever is called, until it returns.
func (l *Loop) Buffer() []byte { return l.buffer[:] }

// Tick has f called every [Tick] until it returns false.
func (l *Loop) Tick(f func(now time.Time) (again bool)) {
	if len(l.ticks) == 0 {
		l.ticked = l.now
	}
	l.ticks = append(l.ticks, f)
}

// Watch reports a socket's events until it is forgotten.
func (l *Loop) Watch(fd int, mode Mode, w Watcher) (Handle, error) {
	h := Handle{index: int32(len(l.slots))}
	if n := len(l.free); n > 0 {
		h.index, l.free = l.free[n-1], l.free[:n-1]
	} else {
		l.slots = append(l.slots, slot{})
	}
	s := &l.slots[h.index]
	s.watcher, h.generation = w, s.generation
	event := unix.EpollEvent{Events: uint32(mode), Fd: h.index, Pad: h.generation}
	if err := unix.EpollCtl(l.epoll, unix.EPOLL_CTL_ADD, fd, &event); err != nil {
		l.Forget(h)
		return Handle{}, fmt.Errorf("failed to watch socket: %w", os.NewSyscallError("epoll_ctl", err))
	}
	return h, nil
}

// Forget reports nothing more. The descriptor must be closed next, or be given to [Loop.Release] instead.
func (l *Loop) Forget(h Handle) {
	if h == (Handle{}) || l.slots[h.index].generation != h.generation {
		return
	}
	s := &l.slots[h.index]
	s.watcher = nil
	s.generation++
	l.free = append(l.free, h.index)
}

// Release is Forget for a descriptor that stays open.
func (l *Loop) Release(fd int, h Handle) {
	l.Forget(h)
	_ = unix.EpollCtl(l.epoll, unix.EPOLL_CTL_DEL, fd, nil) // fails only for what is not watched
}

func (l *Loop) run(ctx context.Context) (err error) {
	defer l.end()
	if err := l.begin(); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { l.Do(func() {}) })
	defer stop()
	for ctx.Err() == nil {
		timeout := -1
		if len(l.ticks) > 0 {
			timeout = max(int(time.Until(l.ticked.Add(Tick)).Milliseconds())+1, 0)
		}
		n, err := unix.EpollWait(l.epoll, l.events[:], timeout)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("failed to wait for sockets: %w", os.NewSyscallError("epoll_wait", err))
		}
		l.now = time.Now()
		for _, e := range l.events[:max(n, 0)] {
			if e.Fd == 0 {
				l.work()
				continue
			}
			if s := &l.slots[e.Fd]; s.watcher != nil && s.generation == e.Pad {
				s.watcher.Ready(Events(e.Events))
			}
		}
		if len(l.ticks) > 0 && l.now.Sub(l.ticked) >= Tick {
			l.ticked = l.now
			// What a function adds comes behind.
			before := len(l.ticks)
			kept := slices.DeleteFunc(l.ticks[:before:before], func(f func(time.Time) bool) bool { return !f(l.now) })
			l.ticks = append(kept, l.ticks[before:]...)
		}
		l.turn.End(l.now)
	}
	return nil
}

// begin opens what the loop waits with.
func (l *Loop) begin() error {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return fmt.Errorf("failed to make epoll: %w", err)
	}
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err == nil {
		err = unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, wake, &unix.EpollEvent{Events: unix.EPOLLIN})
	}
	if err != nil {
		_ = unix.Close(epoll)
		return fmt.Errorf("failed to make eventfd: %w", err)
	}
	l.mu.Lock()
	l.epoll, l.wake, l.now = epoll, wake, time.Now()
	l.mu.Unlock()
	l.work()
	return nil
}

// end gives the descriptors back. What is still to be done is done.
func (l *Loop) end() {
	l.work()
	l.mu.Lock()
	l.ended = true
	wake := l.wake
	l.wake = -1
	l.mu.Unlock()
	l.work()
	if wake >= 0 {
		_ = unix.Close(wake)
		_ = unix.Close(l.epoll)
		l.epoll = -1
	}
	close(l.over)
}

// work does what others have asked for.
func (l *Loop) work() {
	l.mu.Lock()
	todo := l.todo
	l.todo = nil
	if l.wake >= 0 {
		_, _ = unix.Read(l.wake, l.count[:]) // EAGAIN where nobody has woken us
	}
	l.mu.Unlock()
	for _, f := range todo {
		f()
	}
}
