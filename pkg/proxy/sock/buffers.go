package sock

import (
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/pkg/proxy/admission"
)

// Buffers is how much the kernel may hold of a long stream. Bytes that a peer does not take stay in the buffers of two
// sockets and count as our memory, up to megabytes if it were left to the kernel. So a stream begins with small buffers
// and gets larger ones where there is room.
type Buffers uint8

// The sizes of [Buffers].
const (
	Small Buffers = iota
	Medium
	Large
	// Largest is 4 MiB. With it, copying takes less than half of the processor time that it takes with Small.
	Largest
	// Least is less than Small, where memory is short.
	Least
)

var (
	// unsent is how many bytes a socket takes beyond those that are on their way (TCP_NOTSENT_LOWAT).
	unsent = [...]int{Least: 16 << 10, Small: 32 << 10, Medium: 128 << 10, Large: 1 << 20, Largest: 4 << 20}
	// sent is how many bytes a socket takes in all (SO_SNDBUF; the kernel takes as much again for itself). Without that
	// bound it takes what the peer's window allows besides unsent: of a thousand machines that load at full speed, 160
	// KiB each. It is net.core.wmem_max at most; larger buffers get the kernel's own bound instead, which grows with the
	// peer's window.
	sent = [...]int{Least: 16 << 10, Small: 64 << 10, Medium: 128 << 10}
	// received is how many bytes an endpoint may send before they are read (SO_RCVBUF); the kernel takes as much again
	// for itself.
	received = [...]int{Least: 32 << 10, Small: 32 << 10, Medium: 256 << 10, Large: 512 << 10, Largest: 4 << 20}
	// costs is what the kernel may hold of a stream with the sizes after Small.
	costs = []int64{640 << 10, 2 << 20, 8 << 20}
)

// StreamBuffers are the buffers of a stream now. The zero StreamBuffers are small.
type StreamBuffers struct {
	size Buffers
	loan admission.Loan
}

// Resize gives the stream the largest buffers that there is room for, up to most; a stream that is at its end has small
// ones (most is Small). It bounds how much dst holds for its peer, and reports the size and whether it has changed. A
// long stream calls it again as it gets on.
func (b *StreamBuffers) Resize(charge *admission.Charge, dst syscall.Conn, most Buffers) (size Buffers, changed bool) {
	size = Buffers(charge.Lend(&b.loan, costs[:most]...))
	if most > Small && charge.Short() {
		size = Least
	}
	if size == b.size {
		return size, false
	}
	b.size = size
	setBuffer(dst, unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, unsent[size])
	if sent[size] > 0 {
		setBuffer(dst, unix.SOL_SOCKET, unix.SO_SNDBUF, sent[size])
	} else {
		unboundSend(dst)
	}
	return size, true
}

// far is a round trip in which a sender with [Medium] buffers sends less than a Gbit/s.
const far = time.Millisecond

// Far reports whether the other end of a connection is so far away that Medium buffers would bound its rate.
func Far(c syscall.Conn) (yes bool) {
	if raw, err := c.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) {
			info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
			yes = err == nil && time.Duration(info.Min_rtt)*time.Microsecond >= far
		})
	}
	return yes
}

// SetReceiveBuffer bounds how many bytes of an endpoint its socket holds. A socket begins with the kernel's first size,
// some 128 KiB, which grows as it is read. Once a bound was set, the kernel never lets the buffer grow by itself again.
func SetReceiveBuffer(c syscall.Conn, size Buffers) {
	setBuffer(c, unix.SOL_SOCKET, unix.SO_RCVBUF, received[size])
}

// SmallReceiveBuffer is [SetReceiveBuffer] for the sockets of a [net.Dialer], before they connect.
func SmallReceiveBuffer(_, _ string, raw syscall.RawConn) error {
	return raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, received[Small])
	})
}

// unboundSend leaves it to the kernel how much a socket takes. Before Linux 5.15 it cannot be left to the kernel again:
// then it is as much as the kernel allows.
func unboundSend(c syscall.Conn) {
	raw, err := c.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) {
		locks, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_BUF_LOCK)
		if err == nil {
			err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_BUF_LOCK, locks&^sendLock)
		}
		if err != nil {
			_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUF, unsent[Largest])
		}
	})
}

// sendLock is SOCK_SNDBUF_LOCK of <linux/socket.h>, which x/sys/unix does not have.
const sendLock = 1

// setBuffer sets an option. Where that fails, the buffers are as they were.
func setBuffer(c syscall.Conn, level, option, value int) {
	raw, err := c.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), level, option, value) })
}
