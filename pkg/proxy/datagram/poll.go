package datagram

import (
	"math"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/pkg/proxy/loop"
)

// A Poller waits for sockets to become readable. Only Wake may be called from another goroutine.
//
// It blocks in epoll_wait(2): waiting by Go's poller takes three more system calls for a datagram.
type Poller struct {
	epoll  *loop.Epoll
	events []unix.EpollEvent
	yield  loop.Yielder
}

// Token identifies a socket in its events.
type Token struct{ ID, Generation int32 }

// NewPoller makes a poller that reports at most size events at once.
func NewPoller(size int) (*Poller, error) {
	epoll, err := loop.NewEpoll()
	if err != nil {
		return nil, err
	}
	return &Poller{epoll: epoll, events: make([]unix.EpollEvent, size)}, nil
}

// Add reports the socket under the token until it is closed.
func (p *Poller) Add(s *Socket, t Token) error { return p.control(unix.EPOLL_CTL_ADD, s.fd, t, 0) }

// AddOnce is Add for one report, and another one after each [Poller.Again]. In between the socket wakes no thread.
func (p *Poller) AddOnce(s *Socket, t Token) error {
	return p.control(unix.EPOLL_CTL_ADD, s.fd, t, unix.EPOLLONESHOT)
}

// Again reports a socket of AddOnce once more, at once if it is readable.
func (p *Poller) Again(s *Socket, t Token) error {
	return p.control(unix.EPOLL_CTL_MOD, s.fd, t, unix.EPOLLONESHOT)
}

func (p *Poller) control(operation, fd int, t Token, flags uint32) error {
	return p.epoll.Control(operation, fd, unix.EPOLLIN|flags, t.ID, t.Generation)
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
	p.yield.Yield(time.Now())
	n, err := p.epoll.Wait(p.events, ms)
	if err != nil {
		return err
	}
	for _, e := range p.events[:n] {
		if e.Fd == loop.WakeID {
			p.epoll.Woken()
			continue
		}
		yield(Event{Token: Token{ID: e.Fd, Generation: e.Pad}, Failed: e.Events&unix.EPOLLERR != 0})
	}
	return nil
}

// Wake ends a Wait.
func (p *Poller) Wake() { p.epoll.Wake() }

// Close gives the descriptors back.
func (p *Poller) Close() { p.epoll.Close() }
