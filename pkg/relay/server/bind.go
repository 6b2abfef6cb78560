package server

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Bind binds the socket to which servers answer. Its error names the likely cause.
func Bind(fd int, at unix.Sockaddr) error {
	err := os.NewSyscallError("bind", unix.Bind(fd, at))
	switch {
	case errors.Is(err, unix.EADDRINUSE):
		return fmt.Errorf("%w (another DHCP server or relay runs in this network namespace)", err)
	case errors.Is(err, unix.EACCES):
		return fmt.Errorf("%w (the container needs the capability NET_BIND_SERVICE, or the sysctl "+
			"net.ipv4.ip_unprivileged_port_start at 67 or below)", err)
	}
	return err
}
