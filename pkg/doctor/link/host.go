package link

import (
	"context"
	"fmt"
	"net"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"
)

// Host talks as this host does, through one interface, from the host's own address there. It is the interface's name.
type Host string

// DialContext connects.
func (h Host) DialContext(ctx context.Context, network, to string) (net.Conn, error) {
	d := net.Dialer{Control: func(_, _ string, c syscall.RawConn) error {
		var bound error
		if err := c.Control(func(fd uintptr) { bound = unix.BindToDevice(int(fd), string(h)) }); err != nil {
			return err
		}
		return bound
	}}
	conn, err := d.DialContext(ctx, network, to)
	if err != nil {
		return nil, fmt.Errorf("failed to connect to %s: %w", to, err)
	}
	return conn, nil
}

// HasAddress tells whether the interface has an address that others can answer.
func (h Host) HasAddress() bool {
	found, err := net.InterfaceByName(string(h))
	if err != nil {
		return false
	}
	addrs, err := found.Addrs()
	return err == nil && slices.ContainsFunc(addrs, func(a net.Addr) bool {
		n, ok := a.(*net.IPNet)
		return ok && n.IP.IsGlobalUnicast()
	})
}
