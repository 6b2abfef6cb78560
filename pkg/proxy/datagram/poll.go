package datagram

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// A Poller waits for sockets to become readable. Only Wake may be called from another goroutine.
type Poller struct {
	fd     int
	events []unix.EpollEvent

	mu   sync.Mutex // guards wake against Close
	wake int
}

// Token is what a socket's events carry.
type Token struct{ ID, Generation int32 }

// wakeToken belongs to the poller itself.
var wakeToken = Token{ID: -1}

// NewPoller makes a poller that reports at most size events at once.
func NewPoller(size int) (*Poller, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("failed to make epoll: %w", err)
	}
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("failed to make eventfd: %w", err)
	}
	p := &Poller{fd: fd, wake: wake, events: make([]unix.EpollEvent, size)}
	if err := p.add(wake, wakeToken); err != nil {
		p.Close()
		return nil, err
	}
	return p, nil
}

// Add reports the socket under the token until it is closed.
func (p *Poller) Add(s *Socket, t Token) error { return p.add(s.fd, t) }

func (p *Poller) add(fd int, t Token) error {
	event := unix.EpollEvent{Events: unix.EPOLLIN, Fd: t.ID, Pad: t.Generation}
	if err := unix.EpollCtl(p.fd, unix.EPOLL_CTL_ADD, fd, &event); err != nil {
		return fmt.Errorf("failed to watch socket: %w", os.NewSyscallError("epoll_ctl", err))
	}
	return nil
}

// Event is one socket's: readable, or with an error to be fetched.
type Event struct {
	Token
	Failed bool
}

// Wait yields what has happened, after at most timeout (negative: without end). It yields nothing after a
// timeout or a Wake.
func (p *Poller) Wait(timeout time.Duration, yield func(Event)) error {
	ms := -1
	if timeout >= 0 {
		ms = int((timeout + time.Millisecond - 1) / time.Millisecond)
	}
	n, err := unix.EpollWait(p.fd, p.events, ms)
	if errors.Is(err, unix.EINTR) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("failed to wait for datagrams: %w", os.NewSyscallError("epoll_wait", err))
	}
	for _, e := range p.events[:n] {
		t := Token{ID: e.Fd, Generation: e.Pad}
		if t == wakeToken {
			var count [8]byte
			_, _ = unix.Read(p.wake, count[:])
			continue
		}
		yield(Event{Token: t, Failed: e.Events&unix.EPOLLERR != 0})
	}
	return nil
}

// Wake ends a Wait.
func (p *Poller) Wake() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.wake >= 0 {
		_, _ = unix.Write(p.wake, []byte{1, 0, 0, 0, 0, 0, 0, 0}) // fails only when it is awake already
	}
}

// Close gives the descriptors back.
func (p *Poller) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.wake >= 0 {
		_ = unix.Close(p.wake)
		_ = unix.Close(p.fd)
		p.wake = -1
	}
}
