package artifacts

import (
	"errors"
	"fmt"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// Pace bounds how fast the kernel sends on a connection, in bytes a second (SO_MAX_PACING_RATE): one machine with a
// fast link does not starve a hundred others, and sendfile stays. It reaches through TLS.
func Pace(conn net.Conn, bytesPerSecond uint64) error {
	for {
		inner, ok := conn.(interface{ NetConn() net.Conn })
		if !ok {
			break
		}
		conn = inner.NetConn()
	}
	raw, ok := conn.(syscall.Conn)
	if !ok {
		return fmt.Errorf("failed to pace connection: %T has no socket", conn)
	}
	control, err := raw.SyscallConn()
	if err != nil {
		return fmt.Errorf("failed to pace connection: %w", err)
	}
	var failure error
	err = control.Control(func(fd uintptr) {
		failure = unix.SetsockoptUint64(int(fd), unix.SOL_SOCKET, unix.SO_MAX_PACING_RATE, bytesPerSecond)
	})
	if err := errors.Join(err, failure); err != nil {
		return fmt.Errorf("failed to pace connection: %w", err)
	}
	return nil
}
