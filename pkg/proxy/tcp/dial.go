package tcp

import (
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/pkg/proxy/sock"
)

// dial connects to an endpoint, or waits for the pending dial, within the time of the settings. Its errors are the
// kernel's. It gives the socket to adopt first, so that the session can close it meanwhile; adopt may refuse it. Bound
// is for [sock.Open].
func dial(
	addr netip.AddrPort, s *Settings, bound bool, b *pendingDial, adopt func(*sock.Socket) bool,
) (*sock.Socket, error) {
	if b == nil {
		b = &pendingDial{since: time.Now()}
		b.fd, b.err = sock.Open(addr, bound)
	}
	if b.err != nil {
		return nil, fmt.Errorf("failed to connect to %s: %w", addr, b.err)
	}
	if err := s.options().Set(b.fd); err != nil {
		_ = unix.Close(b.fd)
		return nil, err
	}
	c, err := sock.NewSocket(b.fd)
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
		err = c.Connect(addr)
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
