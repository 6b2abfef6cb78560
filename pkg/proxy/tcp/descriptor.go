package tcp

import (
	"errors"
	"net/netip"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// What event loops do with descriptors, here and in package web.

// Open makes a socket that can be connected to an address; with a small receive buffer, where bound. It does not block.
func Open(addr netip.AddrPort, bound bool) (fd int, err error) {
	family, _ := sockaddr(addr)
	fd, err = unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, unix.IPPROTO_TCP)
	if err == nil && bound { // where that fails, the buffer is the kernel's usual one
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, received[Small])
	}
	return fd, os.NewSyscallError("socket", err)
}

// Connect connects a socket, or asks how an attempt goes on: the caller waits where waiting is true. It is no error
// if the socket is connected already.
func Connect(fd int, target netip.AddrPort) (waiting bool, err error) {
	_, to := sockaddr(target)
	switch err := syscall.Connect(fd, to); {
	case errors.Is(err, unix.EINPROGRESS), errors.Is(err, unix.EALREADY), errors.Is(err, unix.EINTR):
		return true, nil
	case err != nil && !errors.Is(err, unix.EISCONN):
		return false, os.NewSyscallError("connect", err)
	}
	// A connection to a port of this host that nobody listens on may, by chance, meet itself.
	if local, err := syscall.Getsockname(fd); err == nil && addrPortOf(local) == addrPortOf(to) {
		return false, os.NewSyscallError("connect", unix.ECONNREFUSED)
	}
	return false, nil
}

// Duplicate is another descriptor of the same socket.
func Duplicate(c syscall.Conn) (fd int, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	if failure := raw.Control(func(of uintptr) { fd, err = unix.FcntlInt(of, unix.F_DUPFD_CLOEXEC, 0) }); failure != nil {
		return 0, failure
	}
	return fd, os.NewSyscallError("fcntl", err)
}

// Disconnect resets a connection and frees what its buffers hold at once: closing waits for calls that use the
// descriptor.
func Disconnect(raw syscall.RawConn) {
	_ = raw.Control(func(fd uintptr) {
		none := unix.RawSockaddr{Family: unix.AF_UNSPEC} // connect(2)
		_, _, _ = unix.RawSyscall(unix.SYS_CONNECT, fd, uintptr(unsafe.Pointer(&none)), unsafe.Sizeof(none))
	})
}

// Again reads or writes by a call, again after a signal. n is never below 0.
func Again(call func(int, []byte) (int, error), fd int, b []byte) (n int, err error) {
	for {
		if n, err = call(fd, b); !errors.Is(err, unix.EINTR) {
			return max(n, 0), err
		}
	}
}

// Socket is a connection in the runtime's poller, made of a descriptor.
type Socket = socket

// NewSocket owns the descriptor, which must not block.
func NewSocket(fd int) (*Socket, error) { return newSocket(fd) }

// Accept takes a connection that waits at a listening socket; EAGAIN where none does.
func Accept(listener int) (fd int, from netip.AddrPort, err error) {
	fd, addr, err := accept(listener)
	return fd, addrPortOf(addr), err
}

// ResetOnClose has the other end learn that the stream is torn when the descriptor is closed (RST instead of FIN).
func ResetOnClose(fd int) { resetOnClose(fd) }
