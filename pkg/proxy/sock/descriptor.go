package sock

import (
	"errors"
	"net/netip"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Open makes a nonblocking TCP socket for addr's family, whose receive buffer is the kernel's to size.
func Open(addr netip.AddrPort) (fd int, err error) { return open(addr, false) }

// OpenSmall is Open with a small receive buffer, which the kernel no longer grows.
func OpenSmall(addr netip.AddrPort) (fd int, err error) { return open(addr, true) }

func open(addr netip.AddrPort, smallReceive bool) (fd int, err error) {
	fd, err = unix.Socket(family(addr), unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, unix.IPPROTO_TCP)
	if err == nil && smallReceive { // where that fails, the buffer is the kernel's usual one
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, received[Small])
	}
	return fd, os.NewSyscallError("socket", err)
}

// Connect starts or continues to connect. While waiting is true, call it again when the socket is writable. A
// connected socket is no error.
func Connect(fd int, target netip.AddrPort) (waiting bool, err error) {
	to, err := sockaddr(target)
	if err != nil {
		return false, err
	}
	switch err := syscall.Connect(fd, to); {
	case errors.Is(err, unix.EINPROGRESS), errors.Is(err, unix.EALREADY), errors.Is(err, unix.EINTR):
		return true, nil
	case err != nil && !errors.Is(err, unix.EISCONN):
		return false, os.NewSyscallError("connect", err)
	}
	// A socket that connects to a local port without a listener may get that very port as its own and connect to itself
	// (TCP simultaneous open).
	if local, err := syscall.Getsockname(fd); err == nil && addrPortOf(local) == addrPortOf(to) {
		return false, os.NewSyscallError("connect", unix.ECONNREFUSED)
	}
	return false, nil
}

// Read is read(2), repeated after EINTR; n is 0 on error.
func Read(fd int, b []byte) (n int, err error) { return again(unix.Read, fd, b) }

// Write is write(2), likewise.
func Write(fd int, b []byte) (n int, err error) { return again(unix.Write, fd, b) }

func again(call func(int, []byte) (int, error), fd int, b []byte) (n int, err error) {
	for {
		if n, err = call(fd, b); !errors.Is(err, unix.EINTR) {
			return max(n, 0), err
		}
	}
}

// Send writes to a socket with flags of send(2), again after a signal. n is never below 0.
func Send(fd int, b []byte, flags int) (n int, err error) {
	for {
		got, _, failure := syscall.Syscall6(unix.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(b))),
			uintptr(len(b)), uintptr(flags|unix.MSG_NOSIGNAL), 0, 0)
		switch failure {
		case 0:
			return int(got), nil
		case unix.EINTR:
		default:
			return 0, failure
		}
	}
}

// Peek looks whether a connection has something to be read (n > 0), has ended (n = 0), or neither (EAGAIN). It takes
// nothing away, and allocates nothing: unix.Recvfrom would allocate the sender's address.
func Peek(fd int) (n int, err error) {
	var one [1]byte
	for {
		got, _, failure := unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(fd), uintptr(unsafe.Pointer(&one)), 1,
			unix.MSG_PEEK|unix.MSG_DONTWAIT, 0, 0)
		switch failure {
		case 0:
			return int(got), nil
		case unix.EINTR:
		default:
			return 0, failure
		}
	}
}

// Acked is how many bytes the other end has acknowledged. EPOLLOUT cannot replace it: it may come long after the
// acknowledgement.
func Acked(fd int) (uint64, error) {
	info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil {
		return 0, os.NewSyscallError("getsockopt", err)
	}
	return info.Bytes_acked, nil
}

// Outstanding is how many written bytes the other end has not acknowledged.
func Outstanding(fd int) int {
	n, _ := unix.IoctlGetInt(fd, unix.SIOCOUTQ)
	return n
}

// LocalAddr is our end's address; invalid where the kernel does not know.
func LocalAddr(fd int) (addr netip.AddrPort) {
	if got, err := syscall.Getsockname(fd); err == nil {
		addr = addrPortOf(got)
	}
	return addr
}

// FD is a descriptor as a [syscall.Conn], for what takes one.
type FD int

// SyscallConn implements syscall.Conn.
func (fd FD) SyscallConn() (syscall.RawConn, error) { return fd, nil }

// Control implements syscall.RawConn.
func (fd FD) Control(f func(uintptr)) error {
	f(uintptr(fd))
	return nil
}

// Read implements syscall.RawConn; a descriptor cannot wait.
func (fd FD) Read(func(uintptr) bool) error { return errors.ErrUnsupported }

// Write implements syscall.RawConn, likewise.
func (fd FD) Write(func(uintptr) bool) error { return errors.ErrUnsupported }

// Disconnected reports whether a connection was reset or has timed out.
func Disconnected(fd int) bool {
	_, err := syscall.Getpeername(fd)
	return errors.Is(err, unix.ENOTCONN)
}

// EndError is why a read returned 0: nil after a FIN, else ECONNRESET. The kernel reports an error once, and a write
// may have got it; so EndError looks at the state: as long as our side is open, a connection is closed only by a reset
// or a timeout. A pending EPIPE means a FIN before the reset, which counts as a FIN.
func EndError(fd int) error {
	if !Disconnected(fd) {
		return nil
	}
	if left, _ := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR); syscall.Errno(left) == unix.EPIPE {
		return nil
	}
	return os.NewSyscallError("read", unix.ECONNRESET)
}

// ResetOnClose has the other end learn that the stream is torn when the descriptor is closed (RST instead of FIN).
func ResetOnClose(fd int) {
	_ = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
}

// NoLocalPort reports whether this host has no port left, or no address at all, towards an address: connect(2).
func NoLocalPort(err error) bool { return errors.Is(err, syscall.EADDRNOTAVAIL) }

// Reset closes a connection so that the other end learns that the stream is torn.
func Reset(fd int) {
	ResetOnClose(fd)
	_ = unix.Close(fd)
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

// Disconnect resets a connection and frees its buffers at once. Close would wait for the calls that use the
// descriptor.
func Disconnect(c syscall.Conn) {
	raw, err := c.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) {
		none := unix.RawSockaddr{Family: unix.AF_UNSPEC} // connect(2)
		_, _, _ = unix.RawSyscall(unix.SYS_CONNECT, fd, uintptr(unsafe.Pointer(&none)), unsafe.Sizeof(none))
	})
}

// Exhausted reports whether this host lacks what a socket takes: descriptors, memory, or a local port.
func Exhausted(err error) bool {
	return NoLocalPort(err) || errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) ||
		errors.Is(err, syscall.ENOBUFS) || errors.Is(err, syscall.ENOMEM)
}
