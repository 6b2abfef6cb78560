package tcp

import (
	"errors"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// listener is a listening socket that Go's poller does not know: it would wake a thread for every connection that a
// loop takes.
type listener struct {
	mu sync.Mutex
	fd int // below 0 when closed
}

// listening is another descriptor of a listening socket.
func listening(l *net.TCPListener) (*listener, error) {
	fd, err := Duplicate(l)
	if err != nil {
		return nil, err
	}
	return &listener{fd: fd}, nil
}

// set sets what later connections inherit.
func (l *listener) set(keepalive, user time.Duration) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fd < 0 {
		return net.ErrClosed
	}
	return setOptions(l.fd, keepalive, user)
}

func (l *listener) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fd >= 0 {
		_ = unix.Close(l.fd)
		l.fd = -1
	}
}

// accept takes a connection that waits; EAGAIN where none does.
func accept(listener int) (fd int, from syscall.Sockaddr, err error) {
	for {
		fd, from, err = syscall.Accept4(listener, unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
		if !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.ECONNABORTED) {
			return fd, from, os.NewSyscallError("accept", err)
		}
	}
}
