// Package sock has the TCP sockets of the proxy: listening, accepting, connecting, their options and buffers,
// splice(2) and sendfile(2), the PROXY header, a count of open connections by client, and a [net.Conn] over a
// descriptor.
//
// Sessions and requests belong to other packages.
package sock

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Socket is a TCP connection in the runtime's poller. It does what a *net.TCPConn does with fewer system calls: net
// asks for both addresses of every connection, sets options that a listener hands down anyway, and dials by way of a
// resolver, which together is a third of what a short connection costs.
type Socket struct {
	*os.File
	raw      syscall.RawConn
	closed   atomic.Bool
	finished atomic.Bool // our end of the stream has been sent
}

// NewSocket owns the descriptor, which must not block.
func NewSocket(fd int) (*Socket, error) {
	file := os.NewFile(uintptr(fd), "tcp")
	raw, err := file.SyscallConn()
	if err != nil {
		_ = file.Close()
		return nil, err
	}
	return &Socket{File: file, raw: raw}, nil
}

// SyscallConn implements syscall.Conn.
func (c *Socket) SyscallConn() (syscall.RawConn, error) { return c.raw, nil }

// reason replaces the error of a call on a closed socket by net.ErrClosed, and unwraps *os.PathError: crypto/tls
// recognizes a timeout only by the inner error.
func (c *Socket) reason(err error) error {
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
func (c *Socket) Read(b []byte) (int, error) {
	n, err := c.File.Read(b)
	if errors.Is(err, io.EOF) {
		if failure := c.ended(); failure != nil {
			return n, failure
		}
	}
	return n, c.reason(err)
}

// Write implements net.Conn.
func (c *Socket) Write(b []byte) (int, error) {
	n, err := c.File.Write(b)
	return n, c.reason(err)
}

// SetReadDeadline implements net.Conn.
func (c *Socket) SetReadDeadline(t time.Time) error { return c.reason(c.File.SetReadDeadline(t)) }

// ended tells a stream that ended (nil) from one that was reset or timed out, as [EndError] does.
func (c *Socket) ended() (err error) {
	failure := c.raw.Control(func(fd uintptr) { err = EndError(int(fd)) })
	switch {
	case c.finished.Load(): // after CloseWrite no write gets the error, and our own FIN may have closed the connection
		return nil
	case failure != nil: // the socket is closed
		return c.reason(failure)
	}
	return err
}

// Close implements net.Conn.
func (c *Socket) Close() error {
	c.closed.Store(true)
	return c.File.Close()
}

// CloseWrite ends the stream towards the other end. It may have been ended before, by way of the descriptor.
func (c *Socket) CloseWrite() error {
	var err error
	c.finished.Store(true)
	if failure := c.raw.Control(func(fd uintptr) { err = unix.Shutdown(int(fd), unix.SHUT_WR) }); failure != nil {
		return c.reason(failure)
	}
	return os.NewSyscallError("shutdown", err)
}

// Acked is [Acked] of the connection; 0 where the kernel does not tell.
func (c *Socket) Acked() (n uint64) {
	_ = c.raw.Control(func(fd uintptr) { n, _ = Acked(int(fd)) })
	return n
}

// Reset closes the connection so that the other end learns that the stream is torn (RST instead of FIN).
func (c *Socket) Reset() {
	_ = c.raw.Control(func(fd uintptr) { ResetOnClose(int(fd)) })
	_ = c.Close()
}

// LocalAddr implements net.Conn.
func (c *Socket) LocalAddr() net.Addr { return net.TCPAddrFromAddrPort(c.address(syscall.Getsockname)) }

// RemoteAddr implements net.Conn.
func (c *Socket) RemoteAddr() net.Addr {
	return net.TCPAddrFromAddrPort(c.address(syscall.Getpeername))
}

// address asks the kernel for one end; it is invalid where the kernel does not know.
func (c *Socket) address(ask func(int) (syscall.Sockaddr, error)) (addr netip.AddrPort) {
	_ = c.raw.Control(func(fd uintptr) {
		if got, err := ask(int(fd)); err == nil {
			addr = addrPortOf(got)
		}
	})
	return addr
}
