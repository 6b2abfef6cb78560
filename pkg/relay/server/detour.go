package server

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/pkg/relay/socket"
)

// openDetour makes a socket on a port that the kernel chooses. Requests only leave through it: servers answer the
// relay's usual port.
func openDetour(ipv6 bool) (*socket.Socket, error) {
	domain, any := unix.AF_INET, unix.Sockaddr(&unix.SockaddrInet4{})
	if ipv6 {
		domain, any = unix.AF_INET6, &unix.SockaddrInet6{}
	}
	s, err := socket.New(domain, unix.SOCK_DGRAM, "detour")
	if err != nil {
		return nil, err
	}
	if err := s.Control(func(fd int) error {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 0) // as little as there is
		return os.NewSyscallError("bind", unix.Bind(fd, any))
	}); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

func closeSocket(s **socket.Socket) {
	if *s != nil {
		_ = (*s).Close()
		*s = nil
	}
}

// Split parses "host" or "host:port"; IPv6 addresses with a port are in brackets. otherwise is the port where none is
// named.
func Split(s string, otherwise uint16) (host string, port uint16, err error) {
	host, port = s, otherwise
	if h, p, splitErr := net.SplitHostPort(s); splitErr == nil {
		n, err := strconv.ParseUint(p, 10, 16)
		if err != nil || n == 0 {
			return "", 0, errors.New("port " + strconv.Quote(p) + " is not within 1 and 65535")
		}
		host, port = h, uint16(n)
	}
	if host == "" {
		return "", 0, errors.New("no host")
	}
	return host, port, nil
}

// Usable tells an address that others can reach: not loopback (trap of the incumbent: 127.1.1.1), unspecified, a group,
// or an IPv6 address that is good on one link only.
func Usable(a netip.Addr) bool {
	return a.IsGlobalUnicast() && !a.Is4In6() || a.Is4() && a.IsLinkLocalUnicast()
}
