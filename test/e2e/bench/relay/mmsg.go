package relay

import (
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// batchSize is the most packets per system call.
const batchSize = 64

// slotLen holds one packet of the load, which is some 350 bytes.
const slotLen = 1024

// mmsghdr is struct mmsghdr of recvmmsg(2). pkg/mmsg has one too, but this module does not need the programs' one:
// their dependencies would replace those that Smee and Hegel are pinned with.
type mmsghdr struct {
	hdr unix.Msghdr
	n   uint32
}

// batch is the memory of recvmmsg and sendmmsg on one blocking socket.
type batch struct {
	fd      int
	headers [batchSize]mmsghdr
	iovs    [batchSize]unix.Iovec
	names   [batchSize]unix.RawSockaddrInet6 // large enough for IPv4's
	slots   [batchSize][slotLen]byte
}

// newBatch prepares a socket's batch. Datagram sockets have names: the sender and the destination.
func newBatch(fd int, named bool) *batch {
	b := &batch{fd: fd}
	for i := range b.headers {
		b.iovs[i].Base = &b.slots[i][0]
		b.headers[i].hdr.Iov = &b.iovs[i]
		b.headers[i].hdr.SetIovlen(1)
		if named {
			b.headers[i].hdr.Name = (*byte)(unsafe.Pointer(&b.names[i]))
			b.headers[i].hdr.Namelen = unix.SizeofSockaddrInet6
		}
	}
	return b
}

// receive blocks for the first packet and takes what else is there. It returns EAGAIN when the socket's timeout ends.
func (b *batch) receive() (int, error) {
	for i := range b.headers {
		b.iovs[i].SetLen(slotLen)
		if b.headers[i].hdr.Name != nil {
			b.headers[i].hdr.Namelen = unix.SizeofSockaddrInet6
		}
	}
	for {
		n, _, errno := unix.Syscall6(unix.SYS_RECVMMSG, uintptr(b.fd), uintptr(unsafe.Pointer(&b.headers[0])), batchSize,
			unix.MSG_WAITFORONE, 0, 0)
		switch errno {
		case 0:
			return int(n), nil
		case unix.EINTR:
		default:
			return 0, errno
		}
	}
}

// packet is packet i as received.
func (b *batch) packet(i int) []byte { return b.slots[i][:b.headers[i].n] }

// send sends the first n packets, whose lengths are set, and blocks until all are with the kernel. What does not fit
// into a queue is lost, as on a wire.
func (b *batch) send(n int) error {
	for at := 0; at < n; {
		sent, _, errno := unix.Syscall6(unix.SYS_SENDMMSG, uintptr(b.fd), uintptr(unsafe.Pointer(&b.headers[at])),
			uintptr(n-at), 0, 0, 0)
		switch errno {
		case 0:
			at += int(sent)
		case unix.EINTR:
		case unix.ENOBUFS, unix.EAGAIN, unix.ECONNREFUSED:
			at++
		default:
			return os.NewSyscallError("sendmmsg", errno)
		}
	}
	return nil
}

// timeout bounds how long receive blocks.
func timeout(fd int, d time.Duration) error {
	tv := unix.NsecToTimeval(d.Nanoseconds())
	err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv)
	return os.NewSyscallError("setsockopt SO_RCVTIMEO", err)
}
