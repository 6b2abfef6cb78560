package tcp

import (
	"net"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/pkg/proxy/queue"
)

// tcpClose is the state of a connection that was reset (TCP_CLOSE of the kernel).
const tcpClose = 7

// enter waits until the session's machine is served, if its route has a bound. It counts a refusal.
func (s *session) enter(client netip.Addr) (leave func(), ok bool) {
	if !s.settings.Queue.On() {
		return func() {}, true
	}
	leave, err := s.settings.Queue.Enter(queue.Request{From: client, Done: s.aborting(), While: func() error {
		if s.client.wasReset() {
			return net.ErrClosed
		}
		return s.keepAlive()
	}})
	if err != nil {
		s.refuse(refusedQueue)
		return nil, false
	}
	return leave, true
}

// wasReset reports whether the peer has reset the connection, while no call reads or writes it.
func (s *socket) wasReset() (gone bool) {
	_ = s.raw.Control(func(fd uintptr) {
		info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		gone = err == nil && info.State == tcpClose
	})
	return gone
}
