// Package mmsg receives and sends batches of packets, each batch by one system call (recvmmsg(2), sendmmsg(2)), in
// memory that is allocated once. It supports packet sockets and UDP sockets of both families. The callers open the
// sockets and wait for packets.
package mmsg

import (
	"encoding/binary"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Batch is the most packets that one system call receives or sends.
const Batch = 64

// header is struct mmsghdr of recvmmsg(2), which x/sys does not have.
type header struct {
	unix.Msghdr
	n uint32 // length of the packet that was received
}

// call is recvmmsg(2) or sendmmsg(2). It uses RawSyscall6: Syscall6 would make the scheduler wake its monitor thread.
// So a blocking call holds its thread and its P (processor).
func call(number uintptr, fd int, headers []header, flags int) (int, unix.Errno) {
	n, _, errno := unix.RawSyscall6(number, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(headers))),
		uintptr(len(headers)), uintptr(flags), 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(n), 0
}

// controlLen has room for IP_PKTINFO, IPV6_PKTINFO and SO_RXQ_OVFL of one received packet, or for one PKTINFO and
// UDP_SEGMENT of a sent one.
const controlLen = 128

// find returns the data of the first control message of a level and type (cmsg(3)), nil where there is none.
func find(messages []byte, level, kind int) []byte {
	for len(messages) >= unix.SizeofCmsghdr {
		header := (*unix.Cmsghdr)(unsafe.Pointer(&messages[0]))
		n := int(header.Len)
		if n < unix.SizeofCmsghdr || n > len(messages) {
			return nil
		}
		if int(header.Level) == level && int(header.Type) == kind {
			return messages[unix.CmsgLen(0):n]
		}
		messages = messages[min(unix.CmsgSpace(n-unix.CmsgLen(0)), len(messages)):]
	}
	return nil
}

// putControl writes the header of a control message, and returns where its data of some length begins.
func putControl(b []byte, level, kind int32, length int) unsafe.Pointer {
	header := (*unix.Cmsghdr)(unsafe.Pointer(&b[0]))
	header.Level, header.Type = level, kind
	header.SetLen(unix.CmsgLen(length))
	return unsafe.Pointer(&b[unix.CmsgLen(0)])
}

// Htons turns a number into network order for the kernel's structures.
func Htons(v uint16) uint16 {
	var b [2]byte
	binary.BigEndian.PutUint16(b[:], v)
	return binary.NativeEndian.Uint16(b[:])
}

// Ntohs turns a number of the kernel's structures into this machine's order.
func Ntohs(v uint16) uint16 { return Htons(v) }
