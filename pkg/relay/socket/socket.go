// Package socket has the sockets of the relays: packet sockets, UDP sockets of both families, and netlink. They wait
// for packets by Go's poller, or in the kernel while packets come often, and move them in batches (package mmsg).
package socket

import (
	"errors"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/pkg/mmsg"
)

// Socket is a socket with an epoll of its own. Go's poller watches that epoll and not the socket, so that Pump can take
// the socket out of the poller, and give it back.
type Socket struct {
	fd    int
	epoll *os.File
	conn  syscall.RawConn // of epoll

	stopped atomic.Bool // a Pump must not wait in the kernel any more
}

// New makes a socket of a domain and kind (socket(2)). The name is for errors.
func New(domain, kind int, name string) (*Socket, error) {
	fd, err := unix.Socket(domain, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	timeout := unix.NsecToTimeval(quiet.Nanoseconds())
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout); err != nil {
		return nil, errors.Join(os.NewSyscallError("setsockopt SO_RCVTIMEO", err), unix.Close(fd))
	}
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, errors.Join(os.NewSyscallError("epoll_create1", err), unix.Close(fd))
	}
	err = unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN})
	if err == nil {
		err = unix.SetNonblock(epoll, true) // or os.NewFile would not give it to the poller
	}
	if err != nil {
		return nil, errors.Join(os.NewSyscallError("epoll_ctl", err), unix.Close(epoll), unix.Close(fd))
	}
	s := &Socket{fd: fd, epoll: os.NewFile(uintptr(epoll), name)}
	if s.conn, err = s.epoll.SyscallConn(); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// Close closes the socket, after every system call with its descriptor has returned.
func (s *Socket) Close() error {
	s.stopped.Store(true) // or epoll.Close could wait for a Pump for as long as packets come
	err := s.epoll.Close()
	if errors.Is(err, os.ErrClosed) {
		return err // the number may be another socket's by now
	}
	return errors.Join(err, unix.Close(s.fd))
}

// Control runs f with the descriptor.
func (s *Socket) Control(f func(fd int) error) error {
	var err error
	if controlErr := s.conn.Control(func(uintptr) { err = f(s.fd) }); controlErr != nil {
		return controlErr
	}
	return err
}

// Attach gives a socket a filter.
func Attach(fd int, program []bpf.RawInstruction) error {
	filters := make([]unix.SockFilter, len(program))
	for i, in := range program {
		filters[i] = unix.SockFilter{Code: in.Op, Jt: in.Jt, Jf: in.Jf, K: in.K}
	}
	prog := unix.SockFprog{Len: uint16(len(filters)), Filter: &filters[0]}
	return os.NewSyscallError("setsockopt SO_ATTACH_FILTER",
		unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &prog))
}

// Stop ends a Pump, within a tenth of a second: behind the batch that it handles, however many packets wait.
func (s *Socket) Stop() {
	s.stopped.Store(true)
	_ = s.epoll.SetReadDeadline(time.Unix(1, 0))
}

// Send sends what a batch holds. Of each packet that the kernel refused, the batch tells its owner.
func (s *Socket) Send(out *mmsg.SendBatch) { out.FlushHeld(s.conn, s.fd) }

// read reads one packet.
func (s *Socket) read(b []byte) (n int, err error) {
	closed := s.conn.Read(func(uintptr) bool {
		n, _, err = unix.Recvfrom(s.fd, b, unix.MSG_DONTWAIT)
		return err != unix.EAGAIN && err != unix.EINTR
	})
	if closed != nil {
		return 0, closed
	}
	return max(n, 0), os.NewSyscallError("recvfrom", err)
}
