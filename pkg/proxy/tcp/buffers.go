package tcp

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// Sockets begin with small buffers. What a peer does not take, or an endpoint sends that a peer does not take, stays in
// them, and counts as our memory: the kernel's own bounds are megabytes. Where there is room, long streams get larger
// ones.
const (
	// smallUnsent and largeUnsent are how many bytes a socket takes beyond those that are on their way
	// (TCP_NOTSENT_LOWAT).
	smallUnsent, largeUnsent = 32 << 10, 128 << 10
	// smallReceive and largeReceive are what an endpoint may send before it is read (SO_RCVBUF); the kernel takes as much
	// again for its own.
	smallReceive, largeReceive = 32 << 10, 256 << 10
)

// SetSendBuffer makes what a socket holds for its peer large or small.
func SetSendBuffer(raw syscall.RawConn, large bool) {
	setBuffer(raw, unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, pick(large, largeUnsent, smallUnsent))
}

// SetReceiveBuffer makes what a socket holds of its peer large or small.
func SetReceiveBuffer(raw syscall.RawConn, large bool) {
	setBuffer(raw, unix.SOL_SOCKET, unix.SO_RCVBUF, pick(large, largeReceive, smallReceive))
}

// SmallReceiveBuffer is [SetReceiveBuffer] for net.Dialer, before it connects.
func SmallReceiveBuffer(_, _ string, raw syscall.RawConn) error {
	SetReceiveBuffer(raw, false)
	return nil
}

// setBuffer sets an option. Where that fails, the buffers are as they were.
func setBuffer(raw syscall.RawConn, level, option, value int) {
	_ = raw.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), level, option, value) })
}

func pick(large bool, a, b int) int {
	if large {
		return a
	}
	return b
}
