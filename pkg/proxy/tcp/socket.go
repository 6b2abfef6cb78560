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

// Addresses are package syscall's: those of x/sys/unix ask the kernel of each socket which protocol it has.

// socket is a TCP connection in the runtime's poller. It does what a *net.TCPConn does with fewer system calls: net
// asks for both addresses of every connection, sets options that a listener hands down anyway, and dials by way of a
// resolver, which together is a third of what a short connection costs.
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

// dial connects within a time, or waits for an attempt that is pending; the errors are the kernel's. It passes the
// socket to adopt first, so that the session can close it meanwhile; adopt may refuse it. Bound is for [Open].
func dial(addr netip.AddrPort, s *Settings, bound bool, b *pendingDial, adopt func(*socket) bool) (*socket, error) {
	if b == nil {
		b = &pendingDial{since: time.Now()}
		b.fd, b.err = Open(addr, bound)
	}
	if b.err != nil {
		return nil, fmt.Errorf("failed to connect to %s: %w", addr, b.err)
	}
	if err := setOptions(b.fd, s.Keepalive, s.UserTimeout); err != nil {
		_ = unix.Close(b.fd)
		return nil, err
	}
	c, err := newSocket(b.fd)
	if err != nil {
		return nil, err
	}
	if !adopt(c) {
		_ = c.Close()
		return nil, errAborted
	}
	if s.Dial > 0 {
		err = c.SetWriteDeadline(b.since.Add(s.Dial))
	}
	if err == nil {
		err = c.connect(addr)
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

// connect waits until the socket is connected. It asks the kernel whenever the poller wakes it.
func (c *socket) connect(target netip.AddrPort) error {
	var waiting bool
	var answer error
	err := c.raw.Write(func(fd uintptr) bool {
		waiting, answer = Connect(int(fd), target)
		return !waiting
	})
	if err != nil {
		return c.reason(err)
	}
	return answer
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

// ended tells a stream that ended (nil) from one that was reset or timed out. The kernel reports an error once: when
// a write got it, the next read just sees an end. The state of the connection still tells, since after the other
// end's FIN alone it is not closed before ours. After a FIN and then a reset, a write fails with another error
// (EPIPE).
func (c *socket) ended() (err error) {
	failure := c.raw.Control(func(fd uintptr) { err = ended(int(fd)) })
	switch {
	case c.finished.Load(): // no write can have got the error, and our FIN may have closed the connection
		return nil
	case failure != nil: // a write got the error of a closed socket, too
		return c.reason(failure)
	}
	return err
}

// ended is why a stream has ended: nil where the other end sent a FIN. Our direction must still be open.
func ended(fd int) error {
	if _, state := syscall.Getpeername(fd); !errors.Is(state, unix.ENOTCONN) {
		return nil
	}
	if left, _ := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR); syscall.Errno(left) == unix.EPIPE {
		return nil
	}
	return os.NewSyscallError("read", unix.ECONNRESET)
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
	_ = c.raw.Control(func(fd uintptr) { resetOnClose(int(fd)) })
	_ = c.Close()
}

func resetOnClose(fd int) {
	_ = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
}

// LocalAddr implements net.Conn.
func (c *socket) LocalAddr() net.Addr { return net.TCPAddrFromAddrPort(c.address(syscall.Getsockname)) }

// RemoteAddr implements net.Conn.
func (c *socket) RemoteAddr() net.Addr {
	return net.TCPAddrFromAddrPort(c.address(syscall.Getpeername))
}

// address asks the kernel for one end; it is invalid where the kernel does not know.
func (c *socket) address(ask func(int) (syscall.Sockaddr, error)) (addr netip.AddrPort) {
	_ = c.raw.Control(func(fd uintptr) {
		if got, err := ask(int(fd)); err == nil {
			addr = addrPortOf(got)
		}
	})
	return addr
}

// sockaddr is an address as the kernel reads it.
func sockaddr(addr netip.AddrPort) (family int, s syscall.Sockaddr) {
	if ip := addr.Addr().Unmap(); ip.Is4() {
		return unix.AF_INET, &syscall.SockaddrInet4{Port: int(addr.Port()), Addr: ip.As4()}
	}
	six := &syscall.SockaddrInet6{Port: int(addr.Port()), Addr: addr.Addr().As16()}
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
func addrPortOf(s syscall.Sockaddr) netip.AddrPort {
	switch s := s.(type) {
	case *syscall.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(s.Addr), uint16(s.Port))
	case *syscall.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(s.Addr).Unmap(), uint16(s.Port))
	}
	return netip.AddrPort{}
}
