package datagram

import (
	"errors"
	"fmt"
	"math"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/pkg/proxy/loop"
)

// A Poller waits for sockets to become readable. Only Wake may be called from another goroutine.
//
// It blocks in epoll_wait(2): to wait by way of Go's poller takes three more system calls for a datagram.
type Poller struct {
	epoll  int
	events []unix.EpollEvent
	turn   loop.Turn

	mu   sync.Mutex // guards wake against Close
	wake int
}

// Token is what a socket's events carry.
type Token struct{ ID, Generation int32 }

// wakeToken belongs to the poller itself.
var wakeToken = Token{ID: -1}

// NewPoller makes a poller that reports at most size events at once.
func NewPoller(size int) (*Poller, error) {
	p := &Poller{epoll: -1, wake: -1, events: make([]unix.EpollEvent, size)}
	var err error
	if p.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
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

// AddOnce is Add for one report, and another one after each [Poller.Again]. In between the socket wakes nobody.
func (p *Poller) AddOnce(s *Socket, t Token) error {
	return p.control(unix.EPOLL_CTL_ADD, s.fd, t, unix.EPOLLONESHOT)
}

// Again reports a socket of AddOnce once more, at once if it is readable.
func (p *Poller) Again(s *Socket, t Token) error {
	return p.control(unix.EPOLL_CTL_MOD, s.fd, t, unix.EPOLLONESHOT)
}

func (p *Poller) control(operation, fd int, t Token, flags uint32) error {
	event := unix.EpollEvent{Events: unix.EPOLLIN | flags, Fd: t.ID, Pad: t.Generation}
	if err := unix.EpollCtl(p.epoll, operation, fd, &event); err != nil {
		return fmt.Errorf("failed to watch socket: %w", os.NewSyscallError("epoll_ctl", err))
	}
	return nil
}

// Event is one socket's: readable, or with an error to be fetched.
type Event struct {
	Token
	Failed bool
}

// Wait yields what has happened, after at most timeout, in whole milliseconds that are not less (negative: without
// end). It may yield nothing: after the timeout, a Wake, or a signal.
func (p *Poller) Wait(timeout time.Duration, yield func(Event)) error {
	ms := -1
	if timeout >= 0 {
		ms = int(min((timeout+time.Millisecond-1)/time.Millisecond, math.MaxInt32))
	}
	p.turn.End(time.Now())
	n, err := unix.EpollWait(p.epoll, p.events, ms)
	if err != nil && !errors.Is(err, unix.EINTR) {
		return fmt.Errorf("failed to wait for datagrams: %w", os.NewSyscallError("epoll_wait", err))
	}
	for _, e := range p.events[:max(n, 0)] {
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
	for _, fd := range []*int{&p.epoll, &p.wake} {
		if *fd >= 0 {
			_ = unix.Close(*fd)
			*fd = -1
		}
	}
}
