package datagram

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A Poller waits for sockets to become readable. Only Wake may be called from another goroutine.
//
// It is an epoll descriptor which itself is watched by the runtime's poller: to wait in a blocking epoll_wait
// instead would take a thread out of the scheduler and back for every packet, and wake the runtime's monitor,
// which costs more than the packet.
type Poller struct {
	file   *os.File
	raw    syscall.RawConn
	events []unix.EpollEvent
	ready  int
	failed error
	poll   func(fd uintptr) bool // p.take, made once
	armed  time.Time             // the read deadline of file, zero for none

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
	if err := unix.SetNonblock(fd, true); err != nil { // so that os.File gives it to the runtime's poller
		_ = unix.Close(fd)
		return nil, fmt.Errorf("failed to make epoll: %w", err)
	}
	p := &Poller{file: os.NewFile(uintptr(fd), "epoll"), wake: -1, events: make([]unix.EpollEvent, size)}
	p.poll = p.take
	if p.raw, err = p.file.SyscallConn(); err != nil {
		p.Close()
		return nil, fmt.Errorf("failed to make epoll: %w", err)
	}
	if p.wake, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		p.Close()
		return nil, fmt.Errorf("failed to make eventfd: %w", err)
	}
	if err := p.control(unix.EPOLL_CTL_ADD, p.wake, wakeToken, 0); err != nil {
		p.Close()
		return nil, err
	}
	return p, nil
}

// Add reports the socket under the token until it is closed.
func (p *Poller) Add(s *Socket, t Token) error { return p.control(unix.EPOLL_CTL_ADD, s.fd, t, 0) }

// AddOnce is Add for one report, and another one after each [Poller.Again]. In between the socket wakes nobody: else
// the runtime's poller wakes a thread for each datagram that comes while its reader is not waiting.
func (p *Poller) AddOnce(s *Socket, t Token) error {
	return p.control(unix.EPOLL_CTL_ADD, s.fd, t, unix.EPOLLONESHOT)
}

// Again reports a socket of AddOnce once more, at once if it is readable.
func (p *Poller) Again(s *Socket, t Token) error {
	return p.control(unix.EPOLL_CTL_MOD, s.fd, t, unix.EPOLLONESHOT)
}

func (p *Poller) control(operation, fd int, t Token, flags uint32) error {
	event := unix.EpollEvent{Events: unix.EPOLLIN | flags, Fd: t.ID, Pad: t.Generation}
	var failed error
	if err := p.raw.Control(func(epoll uintptr) {
		failed = unix.EpollCtl(int(epoll), operation, fd, &event)
	}); err != nil {
		return fmt.Errorf("failed to watch socket: %w", err)
	}
	if failed != nil {
		return fmt.Errorf("failed to watch socket: %w", os.NewSyscallError("epoll_ctl", failed))
	}
	return nil
}

// Event is one socket's: readable, or with an error to be fetched.
type Event struct {
	Token
	Failed bool
}

// Wait yields what has happened, after at most timeout (negative: without end). It may yield nothing: after the
// timeout, after a Wake, and when a timeout was shorter than a later one.
func (p *Poller) Wait(timeout time.Duration, yield func(Event)) error {
	p.arm(timeout)
	p.ready, p.failed = 0, nil
	err := p.raw.Read(p.poll)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		p.armed = time.Time{}
		return p.file.SetReadDeadline(time.Time{})
	}
	if err == nil && p.failed != nil {
		err = os.NewSyscallError("epoll_wait", p.failed)
	}
	if err != nil {
		return fmt.Errorf("failed to wait for datagrams: %w", err)
	}
	for _, e := range p.events[:p.ready] {
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

// arm sees to it that Wait ends in time. Under traffic the timeout moves with each packet: a deadline that is
// too early by then costs one empty turn, which is cheaper than to move it.
func (p *Poller) arm(timeout time.Duration) {
	if timeout < 0 {
		return
	}
	at := time.Now().Add(timeout)
	if p.armed.IsZero() || at.Before(p.armed) {
		p.armed = at
		_ = p.file.SetReadDeadline(at) // fails only for what cannot be polled, and NewPoller would have failed
	}
}

// take asks without waiting. False lets the runtime wait for the epoll descriptor to become readable.
func (p *Poller) take(fd uintptr) bool {
	for {
		n, _, errno := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, fd, uintptr(unsafe.Pointer(&p.events[0])),
			uintptr(len(p.events)), 0, 0, 0)
		switch errno {
		case 0:
			p.ready = int(n)
			return n > 0
		case unix.EINTR:
		default:
			p.failed = errno
			return true
		}
	}
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
	_ = p.file.Close()
	if p.wake >= 0 {
		_ = unix.Close(p.wake)
		p.wake = -1
	}
}
