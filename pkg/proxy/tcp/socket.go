package tcp

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// socket is a TCP connection in the runtime's poller. It does what a *net.TCPConn does, and asks the kernel for
// nothing that nobody wants to know: net asks for both addresses of every connection, sets options that a listener
// hands down anyway, and dials by way of a resolver, which together is a third of what a short connection costs.
type socket struct {
	*os.File
	raw      syscall.RawConn
	closed   atomic.Bool
	finished atomic.Bool // our end of the stream has been sent
}

// newSocket owns the descriptor, which must not block.
func newSocket(fd int) (*socket, error) {
	file := os.NewFile(uintptr(fd), "tcp")
	raw, err := file.SyscallConn()
	if err != nil {
		_ = file.Close()
		return nil, err
	}
	return &socket{File: file, raw: raw}, nil
}

// listening is another descriptor of a listening socket, which net would not let us accept from.
func listening(l *net.TCPListener) (*socket, error) {
	raw, err := l.SyscallConn()
	if err != nil {
		return nil, err
	}
	var fd int
	if failure := raw.Control(func(of uintptr) { fd, err = unix.FcntlInt(of, unix.F_DUPFD_CLOEXEC, 0) }); failure != nil {
		return nil, failure
	}
	if err != nil {
		return nil, os.NewSyscallError("fcntl", err)
	}
	return newSocket(fd)
}

// dial connects within a time; the errors are the kernel's. Who adopts the socket can close it meanwhile, or refuses
// it.
func dial(addr netip.AddrPort, s *Settings, adopt func(*socket) bool) (*socket, error) {
	family, target := sockaddr(addr)
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, unix.IPPROTO_TCP)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	if err := setOptions(fd, s.Keepalive, s.UserTimeout); err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	c, err := newSocket(fd)
	if err != nil {
		return nil, err
	}
	if !adopt(c) {
		_ = c.Close()
		return nil, errAborted
	}
	if s.Dial > 0 {
		err = c.SetWriteDeadline(time.Now().Add(s.Dial))
	}
	if err == nil {
		err = c.connect(target)
	}
	if err == nil {
		err = c.SetWriteDeadline(time.Time{})
	}
	if err != nil {
		_ = c.Close()
		return nil, fmt.Errorf("failed to connect to %s: %w", addr, err)
	}
	return c, nil
}

// connect asks again whenever the poller thinks that something has happened; what is connected says so.
func (c *socket) connect(target unix.Sockaddr) error {
	var answer error
	err := c.raw.Write(func(fd uintptr) bool {
		answer = unix.Connect(int(fd), target)
		return !errors.Is(answer, unix.EINPROGRESS) && !errors.Is(answer, unix.EALREADY) && !errors.Is(answer, unix.EINTR)
	})
	switch {
	case err != nil:
		return c.reason(err)
	case answer != nil && !errors.Is(answer, unix.EISCONN):
		return os.NewSyscallError("connect", answer)
	}
	// A connection to a port of this host that nobody listens on may, by chance, meet itself.
	if local, remote := c.address(unix.Getsockname), addrPortOf(target); local == remote {
		return os.NewSyscallError("connect", unix.ECONNREFUSED)
	}
	return nil
}

// accept takes a connection that waits at a listening socket, with its other end's address.
func (c *socket) accept() (conn *socket, peer netip.AddrPort, err error) {
	var fd int
	var from unix.Sockaddr
	failure := c.raw.Read(func(listener uintptr) bool {
		for {
			fd, from, err = unix.Accept4(int(listener), unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
			if !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.ECONNABORTED) {
				return !errors.Is(err, unix.EAGAIN)
			}
		}
	})
	if failure != nil {
		return nil, peer, c.reason(failure)
	}
	if err != nil {
		return nil, peer, os.NewSyscallError("accept", err)
	}
	conn, err = newSocket(fd)
	return conn, addrPortOf(from), err
}

// reason tells a closed socket from one that fails. It takes off what the file puts around an error, in which TLS would
// not know a deadline that has passed from the end of the connection.
func (c *socket) reason(err error) error {
	if err == nil || errors.Is(err, io.EOF) {
		return err
	}
	if c.closed.Load() {
		return net.ErrClosed
	}
	if wrapped := (*os.PathError)(nil); errors.As(err, &wrapped) {
		return wrapped.Err
	}
	return err
}

// Read implements net.Conn.
func (c *socket) Read(b []byte) (int, error) {
	n, err := c.File.Read(b)
	if errors.Is(err, io.EOF) {
		if failure := c.ended(); failure != nil {
			return n, failure
		}
	}
	return n, c.reason(err)
}

// Write implements net.Conn.
func (c *socket) Write(b []byte) (int, error) {
	n, err := c.File.Write(b)
	return n, c.reason(err)
}

// SetReadDeadline implements net.Conn.
func (c *socket) SetReadDeadline(t time.Time) error { return c.reason(c.File.SetReadDeadline(t)) }

// ended tells a stream that ended (nil) from one that was reset or timed out. The kernel reports that once: to whoever
// writes, if that is first, and whoever reads then sees an end. Only the state of the connection still tells: after the
// other's FIN alone it is not closed before ours. After a FIN and then a reset, which finds us writing, the error is
// another.
func (c *socket) ended() (err error) {
	if c.finished.Load() {
		return nil // nobody writes who could have been first
	}
	failure := c.raw.Control(func(fd uintptr) {
		if _, state := unix.Getpeername(int(fd)); !errors.Is(state, unix.ENOTCONN) {
			return
		}
		if left, _ := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ERROR); syscall.Errno(left) != unix.EPIPE {
			err = os.NewSyscallError("read", unix.ECONNRESET)
		}
	})
	if failure != nil { // who wrote was first there, too
		return c.reason(failure)
	}
	return err
}

// Close implements net.Conn.
func (c *socket) Close() error {
	c.closed.Store(true)
	return c.File.Close()
}

// CloseWrite ends the stream towards the other end.
func (c *socket) CloseWrite() error {
	var err error
	c.finished.Store(true)
	if failure := c.raw.Control(func(fd uintptr) { err = unix.Shutdown(int(fd), unix.SHUT_WR) }); failure != nil {
		return c.reason(failure)
	}
	return os.NewSyscallError("shutdown", err)
}

// waiting is how many bytes the other end has not taken yet.
func (c *socket) waiting() (n int) {
	_ = c.raw.Control(func(fd uintptr) { n, _ = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ) })
	return n
}

// reset closes a connection so that the peer learns that the stream is torn (RST instead of FIN).
func reset(c *socket) {
	_ = c.raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptLinger(int(fd), unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
	})
	_ = c.Close()
}

// LocalAddr implements net.Conn.
func (c *socket) LocalAddr() net.Addr { return net.TCPAddrFromAddrPort(c.address(unix.Getsockname)) }

// RemoteAddr implements net.Conn.
func (c *socket) RemoteAddr() net.Addr { return net.TCPAddrFromAddrPort(c.address(unix.Getpeername)) }

// address asks the kernel for one end; it is invalid where the kernel does not know.
func (c *socket) address(ask func(int) (unix.Sockaddr, error)) (addr netip.AddrPort) {
	_ = c.raw.Control(func(fd uintptr) {
		if got, err := ask(int(fd)); err == nil {
			addr = addrPortOf(got)
		}
	})
	return addr
}

// sockaddr is an address as the kernel reads it.
func sockaddr(addr netip.AddrPort) (family int, s unix.Sockaddr) {
	if ip := addr.Addr().Unmap(); ip.Is4() {
		return unix.AF_INET, &unix.SockaddrInet4{Port: int(addr.Port()), Addr: ip.As4()}
	}
	six := &unix.SockaddrInet6{Port: int(addr.Port()), Addr: addr.Addr().As16()}
	if zone := addr.Addr().Zone(); zone != "" {
		if index, err := strconv.Atoi(zone); err == nil {
			six.ZoneId = uint32(index)
		} else if link, err := net.InterfaceByName(zone); err == nil {
			six.ZoneId = uint32(link.Index)
		}
	}
	return unix.AF_INET6, six
}

// addrPortOf is the kernel's address without zone, IPv4 as such.
func addrPortOf(s unix.Sockaddr) netip.AddrPort {
	switch s := s.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(s.Addr), uint16(s.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(s.Addr).Unmap(), uint16(s.Port))
	}
	return netip.AddrPort{}
}
