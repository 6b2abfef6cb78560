package link

import (
	"context"
	"fmt"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// Host talks as this host does: from its own addresses, and through one interface where that has an address, else by
// this host's routes. It is an interface's name.
type Host string

// DialContext connects.
func (h Host) DialContext(ctx context.Context, network, to string) (net.Conn, error) {
	var d net.Dialer
	if found, err := net.InterfaceByName(string(h)); err == nil {
		if addrs, err := found.Addrs(); err == nil && hasGlobal(addrs) {
			d.Control = func(_, _ string, c syscall.RawConn) error {
				var bound error
				if err := c.Control(func(fd uintptr) { bound = unix.BindToDevice(int(fd), string(h)) }); err != nil {
					return err
				}
				return bound
			}
		}
	}
	conn, err := d.DialContext(ctx, network, to)
	if err != nil {
		return nil, fmt.Errorf("failed to connect to %s: %w", to, err)
	}
	return conn, nil
}

func hasGlobal(addrs []net.Addr) bool {
	for _, a := range addrs {
		if n, ok := a.(*net.IPNet); ok && n.IP.IsGlobalUnicast() {
			return true
		}
	}
	return false
}
