package datagram

import "golang.org/x/sys/unix"

// PathMTU is the size of the largest packet that reaches a session's client whole, as far as the kernel's routes know,
// in bytes with the IP header; 0 where that is not known.
func (w *Worker[T]) PathMTU(s *Session[T]) int {
	probe, err := Open(s.Client.Addr())
	if err != nil {
		return 0
	}
	defer probe.Close()
	return probe.mtu(s.Client)
}

// mtu connects the socket to a peer, which sends nothing, and asks for the MTU of the route there.
func (s *Socket) mtu(to Peer) int {
	option := [2]int{unix.IPPROTO_IP, unix.IP_MTU}
	var sa unix.Sockaddr
	if at := to.Addr(); at.Is4() {
		sa = &unix.SockaddrInet4{Addr: at.As4(), Port: int(to.Port())}
	} else {
		sa = &unix.SockaddrInet6{Addr: at.As16(), Port: int(to.Port()), ZoneId: to.Zone}
		option = [2]int{unix.IPPROTO_IPV6, unix.IPV6_MTU}
	}
	if err := unix.Connect(s.fd, sa); err != nil {
		return 0
	}
	n, err := unix.GetsockoptInt(s.fd, option[0], option[1])
	if err != nil {
		return 0
	}
	return n
}
