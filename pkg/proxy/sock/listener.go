package sock

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Listener is a listening socket outside of Go's poller, which would wake a thread for each connection that a loop
// accepts.
type Listener struct {
	addr netip.AddrPort

	mu sync.Mutex
	fd int // below 0 when closed
}

// Listen opens a listening socket. An invalid or unspecified addr stands for all addresses of both families. freely
// allows an address that this host does not have yet (IP_FREEBIND, ip(7)). Accepted connections inherit the options.
func Listen(addr netip.AddrPort, freely bool, o Options) (*Listener, error) {
	config := net.ListenConfig{KeepAlive: -1, Control: func(network, _ string, raw syscall.RawConn) error {
		return prepare(network, raw, freely, o)
	}}
	config.SetMultipathTCP(false) // it would rule out splice, and the peers do not speak it
	host := ""
	if addr.Addr().IsValid() && !addr.Addr().IsUnspecified() {
		host = addr.Addr().String()
	}
	bound, err := config.Listen(context.Background(), "tcp", net.JoinHostPort(host, fmt.Sprint(addr.Port())))
	switch {
	case errors.Is(err, unix.EADDRINUSE):
		return nil, fmt.Errorf("port %d/tcp is taken by another socket (ss -tanp names it): %w", addr.Port(), err)
	case errors.Is(err, unix.EACCES):
		return nil, fmt.Errorf("port %d/tcp may not be bound by this user: set the sysctl "+
			"net.ipv4.ip_unprivileged_port_start=0 for the pod: %w", addr.Port(), err)
	case errors.Is(err, unix.EADDRNOTAVAIL):
		return nil, fmt.Errorf("address %s is on none of our interfaces: %w", addr.Addr(), err)
	case err != nil:
		return nil, err
	}
	defer bound.Close()
	fd, err := Duplicate(bound.(*net.TCPListener))
	if err != nil {
		return nil, err
	}
	return &Listener{fd: fd, addr: bound.Addr().(*net.TCPAddr).AddrPort()}, nil
}

// prepare sets what a socket has before it is bound.
func prepare(network string, raw syscall.RawConn, freely bool, o Options) (failure error) {
	err := raw.Control(func(fd uintptr) {
		if freely {
			level, option := unix.IPPROTO_IP, unix.IP_FREEBIND
			if network == "tcp6" {
				level, option = unix.IPPROTO_IPV6, unix.IPV6_FREEBIND
			}
			failure = os.NewSyscallError("setsockopt", unix.SetsockoptInt(int(fd), level, option, 1))
		}
		failure = errors.Join(failure, o.Set(int(fd)))
	})
	return errors.Join(err, failure)
}

// Addr is where the socket listens.
func (l *Listener) Addr() netip.AddrPort { return l.addr }

// FD is the descriptor, until Close.
func (l *Listener) FD() int { return l.fd }

// Close closes the socket, once. No loop may be watching it.
func (l *Listener) Close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fd >= 0 {
		_ = unix.Close(l.fd)
		l.fd = -1
	}
}

// ofConnection reports whether accept(2) returned a network error of the connection that it took from the queue. Such
// an error says nothing about the next connection.
func ofConnection(err error) bool {
	for _, each := range []syscall.Errno{
		unix.ENETDOWN, unix.EPROTO, unix.ENOPROTOOPT, unix.EHOSTDOWN, unix.ENONET, unix.EHOSTUNREACH, unix.EOPNOTSUPP,
		unix.ENETUNREACH,
	} {
		if errors.Is(err, each) {
			return true
		}
	}
	return false
}

// accept takes a connection that waits at a listening socket; EAGAIN where none does.
func accept(listener int) (fd int, from netip.AddrPort, err error) {
	for {
		fd, addr, err := syscall.Accept4(listener, unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
		if !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.ECONNABORTED) {
			return fd, addrPortOf(addr), os.NewSyscallError("accept", err)
		}
	}
}
