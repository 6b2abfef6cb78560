package loop

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// Epoll waits for many sockets (epoll(7)). One goroutine uses it; others may call Wake.
type Epoll struct {
	fd int

	mu   sync.Mutex // guards wake against Close
	wake int        // an eventfd; below 0 when closed
}

// WakeID is the first half of what [Epoll.Wake] reports.
const WakeID = -1

// NewEpoll makes an epoll that watches nothing yet.
func NewEpoll() (*Epoll, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("failed to make epoll: %w", err)
	}
	e := &Epoll{fd: fd, wake: -1}
	if e.wake, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		e.Close()
		return nil, fmt.Errorf("failed to make eventfd: %w", err)
	}
	if err := e.Control(unix.EPOLL_CTL_ADD, e.wake, unix.EPOLLIN, WakeID, 0); err != nil {
		e.Close()
		return nil, err
	}
	return e, nil
}

// Control watches a socket, in another way, or no longer: operation and events are those of epoll_ctl(2). Each event
// brings back id, which is not [WakeID], and generation.
func (e *Epoll) Control(operation, fd int, events uint32, id, generation int32) error {
	event := unix.EpollEvent{Events: events, Fd: id, Pad: generation}
	if err := unix.EpollCtl(e.fd, operation, fd, &event); err != nil {
		return fmt.Errorf("failed to watch socket: %w", os.NewSyscallError("epoll_ctl", err))
	}
	return nil
}

// Wait waits until there are events, for at most so many milliseconds (negative: without end), and reports how many
// there are; none also after a signal.
func (e *Epoll) Wait(events []unix.EpollEvent, ms int) (n int, err error) {
	n, err = unix.EpollWait(e.fd, events, ms)
	if err != nil && !errors.Is(err, unix.EINTR) {
		return 0, fmt.Errorf("failed to wait for sockets: %w", os.NewSyscallError("epoll_wait", err))
	}
	return max(n, 0), nil
}

// Wake ends a Wait, the one under way or the next, with an event of [WakeID] until Woken is called.
func (e *Epoll) Wake() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.wake >= 0 {
		_, _ = unix.Write(e.wake, []byte{1, 0, 0, 0, 0, 0, 0, 0}) // fails only when it is awake already
	}
}

// Woken takes note of all calls of Wake so far.
func (e *Epoll) Woken() {
	var count [8]byte
	_, _ = unix.Read(e.wake, count[:]) // EAGAIN where there was none
}

// Close gives the descriptors back.
func (e *Epoll) Close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, fd := range []*int{&e.fd, &e.wake} {
		if *fd >= 0 {
			_ = unix.Close(*fd)
			*fd = -1
		}
	}
}
