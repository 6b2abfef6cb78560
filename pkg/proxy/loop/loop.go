// Package loop waits for many sockets with one thread.
//
// A goroutine for each connection is the plainer program; connections with TLS have one, and so have requests that are
// not plain. But to wake a goroutine takes Go's scheduler as long as the kernel needs to pass a small message on, and a
// short exchange is little else than wake-ups. A [Loop] is one goroutine that blocks in epoll_wait(2) and calls the
// [Watcher] of each socket that is ready. A watcher does only what can be done at once: work that waits for anything
// else holds up all sockets of the loop.
//
// Not its job: reading or writing, and knowing what the sockets are for.
package loop

import (
	"context"
	"errors"
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

// Again is whether nothing has happened, and it is the watcher's turn once more, as it asked by [Loop.Again].
func (e Events) Again() bool { return e == 0 }

// Mode is how a socket is watched.
type Mode uint32

// Modes. Stream and Writes report each change once: the watcher reads until nothing is left.
const (
	// Stream is readable.
	Stream Mode = unix.EPOLLIN | unix.EPOLLPRI | unix.EPOLLRDHUP | edge
	// Writes is Stream, and reports also that the socket has connected, or takes bytes again.
	Writes Mode = Stream | unix.EPOLLOUT
	// Listening reports for as long as connections wait, to one of the loops that watch the socket.
	Listening Mode = unix.EPOLLIN | unix.EPOLLEXCLUSIVE
)

// edge is EPOLLET, which unix has as a negative number.
const edge = 1 << 31

// Watcher is called with a socket's events, in the loop's thread. It must not wait for anything.
type Watcher interface{ Ready(Events) }

// Handle is a watched socket. The zero Handle is none.
type Handle struct{ index, generation int32 }

// Loop waits for sockets with one thread. All of its methods but [Loop.Do] and [Loop.Ended] are for that thread only:
// for watchers, and for the functions that Do and Tick have called.
type Loop struct {
	epoll  *Epoll // nil before the loop runs, and when it has ended
	slots  []slot
	free   []int32
	now    time.Time
	ticks  []func(now time.Time) (again bool)
	ticked time.Time
	again  []Watcher // that are called once more
	spare  []Watcher // the memory that the list `again` had in the turn before
	yield  Yielder
	buffer [bufferSize]byte
	events [batch]unix.EpollEvent

	mu    sync.Mutex
	todo  []func()
	ended bool
	over  chan struct{}
}

// slot has the watcher of a handle. Its generation tells apart the events of sockets that had the slot before.
type slot struct {
	watcher    Watcher
	generation int32
}

// errEnded is of a loop that cannot watch any more.
var errEnded = errors.New("failed to watch socket: the loop has ended")

// Group is the loops of a process.
type Group struct{ loops []*Loop }

// most is how many loops a group has at most, unless asked for more. Each serves some 20,000 short connections a
// second.
const most = 8

// NewGroup makes n loops. With 0 it makes one for every two threads that run Go code: the other threads run goroutines.
func NewGroup(n int) *Group {
	if n <= 0 {
		n = min((runtime.GOMAXPROCS(0)+1)/2, most)
	}
	g := &Group{loops: make([]*Loop, n)}
	for i := range g.loops {
		// Handles begin at index 1, since the zero Handle is none.
		g.loops[i] = &Loop{slots: make([]slot, 1), over: make(chan struct{})}
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

// Run runs the loops until ctx is done, or one of them fails. Sockets that are still watched then are reported no more.
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

// Do has the loop call f soon, in its thread; a loop that does not run yet calls it when it begins. False means that
// the loop has ended and will not call f.
func (l *Loop) Do(f func()) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return false
	}
	l.todo = append(l.todo, f)
	if l.epoll != nil {
		l.epoll.Wake()
	}
	return true
}

// Ended is closed when the loop has ended and its thread calls nothing more. Another goroutine may use then what only
// the loop's thread could use before.
func (l *Loop) Ended() <-chan struct{} { return l.over }

// Now is when the loop was woken last.
func (l *Loop) Now() time.Time { return l.now }

// Buffer is scratch space for the function that the loop calls, until the function returns.
func (l *Loop) Buffer() []byte { return l.buffer[:] }

// Tick calls f every [Tick] until f returns false.
func (l *Loop) Tick(f func(now time.Time) (again bool)) {
	if len(l.ticks) == 0 {
		l.ticked = l.now
	}
	l.ticks = append(l.ticks, f)
}

// Again calls w.Ready without events once the loop has served its other sockets: for a watcher that could go on for
// long.
func (l *Loop) Again(w Watcher) { l.again = append(l.again, w) }

// Watch reports a socket's events until it is forgotten. It fails when the loop has ended.
func (l *Loop) Watch(fd int, mode Mode, w Watcher) (Handle, error) {
	if l.epoll == nil {
		return Handle{}, errEnded
	}
	h := Handle{index: int32(len(l.slots))}
	if n := len(l.free); n > 0 {
		h.index, l.free = l.free[n-1], l.free[:n-1]
	} else {
		l.slots = append(l.slots, slot{})
	}
	s := &l.slots[h.index]
	s.watcher, h.generation = w, s.generation
	if err := l.epoll.Control(unix.EPOLL_CTL_ADD, fd, uint32(mode), h.index, h.generation); err != nil {
		l.Forget(h)
		return Handle{}, err
	}
	return h, nil
}

// Forget reports nothing more of a socket whose descriptor is closed next; for one that stays open there is
// [Loop.Release]. When the loop has ended, it does nothing.
func (l *Loop) Forget(h Handle) {
	if l.epoll == nil || h == (Handle{}) || l.slots[h.index].generation != h.generation {
		return
	}
	s := &l.slots[h.index]
	s.watcher = nil
	s.generation++
	l.free = append(l.free, h.index)
}

// Release is Forget for a descriptor that stays open.
func (l *Loop) Release(fd int, h Handle) {
	if l.epoll == nil || h == (Handle{}) {
		return
	}
	l.Forget(h)
	_ = l.epoll.Control(unix.EPOLL_CTL_DEL, fd, 0, 0, 0) // fails only for what is not watched
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
		if len(l.again) > 0 {
			timeout = 0
		}
		n, err := l.epoll.Wait(l.events[:], timeout)
		if err != nil {
			return err
		}
		l.now = time.Now()
		for _, e := range l.events[:n] {
			if e.Fd == WakeID {
				l.work()
				continue
			}
			if s := &l.slots[e.Fd]; s.watcher != nil && s.generation == e.Pad {
				s.watcher.Ready(Events(e.Events))
			}
		}
		l.again, l.spare = l.spare[:0], l.again
		for _, w := range l.spare {
			w.Ready(0)
		}
		clear(l.spare)
		if len(l.ticks) > 0 && l.now.Sub(l.ticked) >= Tick {
			l.ticked = l.now
			// Functions that are added meanwhile are called from the next tick on.
			before := len(l.ticks)
			kept := slices.DeleteFunc(l.ticks[:before:before], func(f func(time.Time) bool) bool { return !f(l.now) })
			l.ticks = append(kept, l.ticks[before:]...)
		}
		l.yield.Yield(l.now)
	}
	return nil
}

// begin makes the loop's epoll, and does what was asked for before.
func (l *Loop) begin() error {
	epoll, err := NewEpoll()
	if err != nil {
		return err
	}
	l.mu.Lock()
	l.epoll, l.now = epoll, time.Now()
	l.mu.Unlock()
	l.work()
	return nil
}

// end calls all functions that Do was given, and closes the epoll.
func (l *Loop) end() {
	l.work()
	l.mu.Lock()
	l.ended = true
	l.mu.Unlock()
	l.work() // the functions that came meanwhile
	if l.epoll != nil {
		l.epoll.Close()
		l.epoll = nil
	}
	close(l.over)
}

// work calls the functions that Do was given.
func (l *Loop) work() {
	l.mu.Lock()
	todo := l.todo
	l.todo = nil
	if l.epoll != nil {
		l.epoll.Woken()
	}
	l.mu.Unlock()
	for _, f := range todo {
		f()
	}
}
