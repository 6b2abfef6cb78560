package sock

import (
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/pkg/proxy/admission"
)

// Buffers is how much the kernel may hold of a long stream. What a peer does not take, or an endpoint sends that a peer
// does not take, stays in sockets' buffers and counts as our memory: the kernel's own bounds are megabytes. So streams
// begin with what few bytes need, and get more where there is room for it.
type Buffers uint8

// The sizes of [Buffers].
const (
	Small Buffers = iota
	Medium
	Large
	// Unbounded leaves them to the kernel, which takes less than half of the processor time then.
	Unbounded
)

var (
	// unsent is how many bytes a socket takes beyond those that are on their way (TCP_NOTSENT_LOWAT).
	unsent = [...]int{Small: 32 << 10, Medium: 128 << 10, Large: 1 << 20, Unbounded: 4 << 20}
	// received is what an endpoint may send before it is read (SO_RCVBUF); the kernel takes as much again for its own.
	received = [...]int{Small: 32 << 10, Medium: 256 << 10, Large: 512 << 10, Unbounded: 4 << 20}
	// costs are what those after Small are charged, beyond a connection's own cost.
	costs = []int64{640 << 10, 2 << 20, 8 << 20}
)

// Widen charges a lease for the largest buffers that there is room for, up to most; what it charged before is taken
// off. With Small nothing is charged.
func Widen(lease *admission.Lease, spare *admission.Spare, most Buffers) Buffers {
	return Buffers(lease.Spare(spare, costs[:most]...))
}

// SetSendBuffer bounds what a socket holds for its peer.
func SetSendBuffer(c syscall.Conn, size Buffers) {
	setBuffer(c, unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, unsent[size])
}

// SetReceiveBuffer bounds what an endpoint's socket holds of its peer. A socket begins with the kernel's first size,
// some 128 KiB, which grows with what is read. A bound is for good: the kernel lets no buffer grow again for which one
// was set.
func SetReceiveBuffer(c syscall.Conn, size Buffers) {
	setBuffer(c, unix.SOL_SOCKET, unix.SO_RCVBUF, received[size])
}

// SmallReceiveBuffer bounds the buffer of a [net.Dialer]'s sockets for good, before they connect.
func SmallReceiveBuffer(_, _ string, raw syscall.RawConn) error {
	return raw.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, received[Small]) })
}

// setBuffer sets an option. Where that fails, the buffers are as they were.
func setBuffer(c syscall.Conn, level, option, value int) {
	raw, err := c.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), level, option, value) })
}
