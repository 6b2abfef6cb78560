package datagram

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/pkg/mmsg"
)

// MaxSize is the largest payload a UDP datagram carries over IPv4, in bytes; over IPv6 it is 20 more, which
// nothing here makes use of.
const MaxSize = 65507

// receiveBuffer is asked for listeners, in bytes. Without CAP_NET_ADMIN the kernel gives at most
// net.core.rmem_max.
const receiveBuffer = 4 << 20

// A Socket is a non-blocking UDP socket. It is used by one goroutine.
type Socket struct {
	fd     int
	family int
	local  netip.AddrPort
	own    bool          // counted in own
	to     mmsg.Sockaddr // scratch of SendTo, so that it does not escape
}

// Listen opens a socket at an address and port. Zero or unspecified addresses mean all, IPv4 and IPv6 alike. With
// every datagram it gets the address that was asked, and the number of datagrams lost to its full buffer. The port
// belongs to this socket alone: where another one has it, the error wraps EADDRINUSE.
func Listen(at netip.AddrPort) (*Socket, error) { return listen(at, false) }

// listen is Listen, freely at an address that this host does not have yet (IP_FREEBIND, ip(7)).
func listen(at netip.AddrPort, freely bool) (*Socket, error) {
	s, err := listenAny(at, freely)
	switch {
	case err == nil:
		return s, nil
	case errors.Is(err, unix.EADDRINUSE):
		err = fmt.Errorf("taken by another socket (ss -lunp names it): %w", err)
	case errors.Is(err, unix.EACCES):
		err = fmt.Errorf("this user may not bind it: set the sysctl net.ipv4.ip_unprivileged_port_start=0 "+
			"for the pod: %w", err)
	case errors.Is(err, unix.EADDRNOTAVAIL):
		err = fmt.Errorf("the address is on none of our interfaces: %w", err)
	}
	return nil, fmt.Errorf("failed to listen on udp %s: %w", name(at), err)
}

// name writes an address as a user would: "port 69" or "192.0.2.1:69".
func name(at netip.AddrPort) string {
	if !at.Addr().IsValid() || at.Addr().IsUnspecified() && at.Addr().Is6() {
		return fmt.Sprintf("port %d", at.Port())
	}
	return at.String()
}

// listenAny opens the socket of an address, or of all those of IPv4 and IPv6.
func listenAny(at netip.AddrPort, freely bool) (*Socket, error) {
	var free4, free6 []option
	if freely {
		free4 = []option{{unix.IPPROTO_IP, unix.IP_FREEBIND, 1}}
		free6 = []option{{unix.IPPROTO_IPV6, unix.IPV6_FREEBIND, 1}}
	}
	addr := at.Addr().Unmap()
	switch {
	case addr.Is4():
		return bound(addr, at.Port(), true, free4...)
	case addr.IsValid() && !addr.IsUnspecified():
		return bound(addr, at.Port(), true, free6...)
	}
	s, err := bound(netip.IPv6Unspecified(), at.Port(), false)
	if errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EADDRNOTAVAIL) {
		return bound(netip.IPv4Unspecified(), at.Port(), false) // a kernel without IPv6
	}
	return s, err
}

func bound(addr netip.Addr, port uint16, only6 bool, more ...option) (*Socket, error) {
	s, err := open(addr)
	if err != nil {
		return nil, err
	}
	options := []option{{unix.SOL_SOCKET, unix.SO_RXQ_OVFL, 1}}
	if s.family == unix.AF_INET6 {
		only := 0
		if only6 {
			only = 1
		}
		options = append(options,
			option{unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, only},
			option{unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO, 1})
		if !only6 {
			options = append(options, option{unix.IPPROTO_IP, unix.IP_PKTINFO, 1})
		}
	} else {
		options = append(options, option{unix.IPPROTO_IP, unix.IP_PKTINFO, 1})
	}
	if err := s.set(append(options, more...)...); err != nil {
		s.Close()
		return nil, err
	}
	s.GrowBuffers(receiveBuffer)
	if err := s.bind(addr, port); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// Open makes a socket that sends to addresses of the endpoint's family, from any local address and a port that
// the kernel chooses.
func Open(endpoint netip.Addr) (*Socket, error) {
	any := netip.IPv4Unspecified()
	if endpoint.Unmap().Is6() {
		any = netip.IPv6Unspecified()
	}
	s, err := open(any)
	if err != nil {
		return nil, fmt.Errorf("failed to open udp socket: %w", err)
	}
	if err := s.bind(any, 0); err != nil {
		s.Close()
		return nil, fmt.Errorf("failed to bind udp socket: %w", err)
	}
	s.own = true
	own[s.local.Port()].Add(1)
	return s, nil
}

// open makes the descriptor. Every socket sends fragments instead of looking for a path MTU, which a TFTP client could
// not follow.
func open(addr netip.Addr) (*Socket, error) {
	s := &Socket{family: unix.AF_INET}
	mtu := option{unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DONT}
	if addr.Is6() {
		s.family = unix.AF_INET6
		mtu = option{unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_DONT}
	}
	fd, err := unix.Socket(s.family, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, unix.IPPROTO_UDP)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	s.fd = fd
	if err := s.set(mtu); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

type option struct{ level, name, value int }

func (s *Socket) set(options ...option) error {
	for _, o := range options {
		if err := unix.SetsockoptInt(s.fd, o.level, o.name, o.value); err != nil {
			return os.NewSyscallError("setsockopt", err)
		}
	}
	return nil
}

// GrowBuffers asks for buffers of so many bytes in both directions. The kernel grants as much as the process may have;
// a listener's size is the most, since a peer may have negotiated the number.
func (s *Socket) GrowBuffers(bytes int) {
	bytes = min(bytes, receiveBuffer)
	for _, pair := range [][2]int{
		{unix.SO_RCVBUFFORCE, unix.SO_RCVBUF},
		{unix.SO_SNDBUFFORCE, unix.SO_SNDBUF},
	} {
		if unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, pair[0], bytes) != nil {
			_ = unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, pair[1], bytes) // a smaller buffer is still a buffer
		}
	}
}

// ReceiveBuffer is the size of the kernel's receive buffer in bytes, as the kernel counts.
func (s *Socket) ReceiveBuffer() int {
	n, err := unix.GetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_RCVBUF)
	if err != nil {
		return 0
	}
	return n
}

// ReportErrors queues ICMP errors about datagrams that were sent.
func (s *Socket) ReportErrors() error {
	if s.family == unix.AF_INET6 {
		return s.set(option{unix.IPPROTO_IPV6, unix.IPV6_RECVERR, 1})
	}
	return s.set(option{unix.IPPROTO_IP, unix.IP_RECVERR, 1})
}

// DrainErrors empties the queue of ReportErrors and calls refused with each destination that has refused a datagram
// (ICMP port unreachable).
func (s *Socket) DrainErrors(refused func(Peer)) {
	_, _ = unix.GetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_ERROR) // takes the pending one away
	in := mmsg.NewRecvBatchOf([][]byte{{0}, {0}, {0}, {0}}, 0, 1)
	for range 16 {
		n, errno := in.Receive(s.fd, mmsg.Batch, unix.MSG_ERRQUEUE|unix.MSG_DONTWAIT)
		if errno != 0 {
			return
		}
		for i := range n {
			data := in.Message(i, unix.IPPROTO_IP, unix.IP_RECVERR)
			if data == nil {
				data = in.Message(i, unix.IPPROTO_IPV6, unix.IPV6_RECVERR)
			}
			if len(data) >= 4 && binary.NativeEndian.Uint32(data) == uint32(unix.ECONNREFUSED) {
				refused(peerOf(in.From(i)))
			}
		}
	}
}

func (s *Socket) bind(addr netip.Addr, port uint16) error {
	var sa unix.Sockaddr = &unix.SockaddrInet4{Port: int(port)}
	if s.family == unix.AF_INET6 {
		sa = &unix.SockaddrInet6{Port: int(port), Addr: addr.As16()}
	} else {
		sa.(*unix.SockaddrInet4).Addr = addr.As4()
	}
	if err := unix.Bind(s.fd, sa); err != nil {
		return os.NewSyscallError("bind", err)
	}
	got, err := unix.Getsockname(s.fd)
	if err != nil {
		return os.NewSyscallError("getsockname", err)
	}
	switch got := got.(type) {
	case *unix.SockaddrInet4:
		port = uint16(got.Port)
	case *unix.SockaddrInet6:
		port = uint16(got.Port)
	}
	s.local = netip.AddrPortFrom(addr, port)
	return nil
}

// Local is the bound address.
func (s *Socket) Local() netip.AddrPort { return s.local }

// SendTo sends one datagram and reports whether the kernel took it.
func (s *Socket) SendTo(data []byte, to Peer) error {
	s.to.Set(s.addrOf(to), to.Zone)
	for {
		_, _, errno := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(s.fd), uintptr(unsafe.Pointer(unsafe.SliceData(data))),
			uintptr(len(data)), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, uintptr(s.to.Pointer()), uintptr(s.to.Len()))
		switch errno {
		case 0:
			return nil
		case unix.EINTR:
		default:
			return errno
		}
	}
}

// Close gives the descriptor back.
func (s *Socket) Close() {
	if s.fd >= 0 {
		_ = unix.Close(s.fd)
		s.fd = -1
		if s.own {
			own[s.local.Port()].Add(-1)
		}
	}
}
