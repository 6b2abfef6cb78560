// Package mmsg has sockets that receive and send batches of packets by one system call each (recvmmsg(2), sendmmsg(2)),
// in memory that is made once: packet sockets, which carry whole frames, and UDP sockets of both families.
package mmsg

import (
	"errors"
	"os"
	"syscall"
	"time"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// Socket is a non-blocking socket in Go's poller. Reading it costs one system call per batch: the poller is
// edge-triggered, so after a batch that was not full it need not be asked again before it wakes.
type Socket struct {
	file *os.File
	conn syscall.RawConn
}

// NewSocket makes a socket of a domain and kind (socket(2)). The name is for errors.
func NewSocket(domain, kind int, name string) (*Socket, error) {
	fd, err := unix.Socket(domain, kind|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	file := os.NewFile(uintptr(fd), name)
	conn, err := file.SyscallConn()
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return &Socket{file: file, conn: conn}, nil
}

// Close closes the socket.
func (s *Socket) Close() error { return s.file.Close() }

// Control runs f with the descriptor.
func (s *Socket) Control(f func(fd int) error) error {
	var err error
	if controlErr := s.conn.Control(func(fd uintptr) { err = f(int(fd)) }); controlErr != nil {
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

// Pump hands every batch that arrives to handle until the socket fails or is closed; its deadline in the past
// ends it with os.ErrDeadlineExceeded.
func (s *Socket) Pump(in *Inbox, handle func(n int)) error {
	var failed error
	err := s.conn.Read(func(fd uintptr) bool {
		for {
			n, errno := in.receive(fd)
			switch {
			case errno == unix.EAGAIN:
				return false
			case errno != 0:
				failed = os.NewSyscallError("recvmmsg", errno)
				return true
			}
			handle(n)
			if n < Batch {
				return false
			}
		}
	})
	if failed != nil {
		return failed
	}
	return err
}

// Stop ends a Pump.
func (s *Socket) Stop() { _ = s.file.SetReadDeadline(time.Unix(1, 0)) }

// Read reads one packet, as os.File does.
func (s *Socket) Read(b []byte) (int, error) { return s.file.Read(b) }
