package tcp

import (
	"net"
	"net/netip"

	"github.com/tinkerbell/stack/pkg/proxy/queue"
)

// enter waits in the route's queue, if there is one, until the machine may be served. It counts a refusal.
func (s *session) enter(client netip.Addr) (leave func(), ok bool) {
	if !s.settings.Queue.On() {
		return func() {}, true
	}
	leave, err := s.settings.Queue.Enter(queue.Request{From: client, Done: s.aborting(), While: func() error {
		if s.client.WasReset() {
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
