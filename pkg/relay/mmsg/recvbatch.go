package mmsg

import (
	"encoding/binary"
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Batch is the most packets that one system call receives or sends.
const Batch = 64

// A slot holds one packet: room in front for what is put before it, the packet as received, and room behind.
const (
	Received = 2200 // longer ones are truncated, which is noticed
	SlotLen  = 2560
)

// mmsghdr is struct mmsghdr of recvmmsg(2); x/sys has none.
type mmsghdr struct {
	hdr unix.Msghdr
	n   uint32
}

// RecvBatch is the memory of a reader: it receives a batch of packets without allocating.
type RecvBatch struct {
	headers []mmsghdr
	iovs    []unix.Iovec
	names   []unix.RawSockaddrAny
	control []byte
	slots   []byte
	front   int // bytes left free in front of a packet
	filled  int // how many headers the kernel has written to
}

// controlLen is room for one control message of any of the sockets: PACKET_AUXDATA, IP_PKTINFO or IPV6_PKTINFO.
const controlLen = 64

// NewRecvBatch makes a batch that leaves that many bytes free in front of each packet, and the rest of its slot behind.
func NewRecvBatch(front int) *RecvBatch {
	in := &RecvBatch{
		headers: make([]mmsghdr, Batch),
		iovs:    make([]unix.Iovec, Batch),
		names:   make([]unix.RawSockaddrAny, Batch),
		control: make([]byte, Batch*controlLen),
		slots:   make([]byte, Batch*SlotLen),
		front:   front,
	}
	for i := range in.headers {
		in.iovs[i].Base = &in.slots[i*SlotLen+front]
		in.iovs[i].SetLen(Received)
		header := &in.headers[i].hdr
		header.Iov = &in.iovs[i]
		header.SetIovlen(1)
		header.Name = (*byte)(unsafe.Pointer(&in.names[i]))
		header.Control = &in.control[i*controlLen]
		in.ready(header)
	}
	return in
}

// ready gives a header back what the kernel replaces when it receives a packet.
func (in *RecvBatch) ready(header *unix.Msghdr) {
	header.Namelen = unix.SizeofSockaddrAny
	header.SetControllen(controlLen)
	header.Flags = 0
}

// receive fills the batch. The flags (recvmmsg(2)) say whether it waits for a packet; it returns EAGAIN when none came,
// and EINTR when a signal did.
func (in *RecvBatch) receive(fd, flags int) (int, unix.Errno) {
	// Between two packets of a quiet network other programs have had the caches: what need not be touched is not.
	for i := range in.filled {
		in.ready(&in.headers[i].hdr)
	}
	in.filled = 0
	// A raw system call: the scheduler is not to hear of it, since it would wake its monitor thread for every packet.
	n, _, errno := unix.RawSyscall6(unix.SYS_RECVMMSG, uintptr(fd), uintptr(unsafe.Pointer(&in.headers[0])), Batch,
		uintptr(flags|unix.MSG_TRUNC), 0, 0)
	if errno != 0 {
		return 0, errno
	}
	in.filled = int(n)
	return in.filled, 0
}

// Packet is what was Received in place i, with capacity up to the end of its slot, and whether it is whole.
func (in *RecvBatch) Packet(i int) (b []byte, whole bool) {
	start := i*SlotLen + in.front
	n := min(int(in.headers[i].n), Received)
	return in.slots[start : start+n : (i+1)*SlotLen], in.headers[i].hdr.Flags&unix.MSG_TRUNC == 0
}

// Slot is the whole slot of packet i, headroom included.
func (in *RecvBatch) Slot(i int) []byte { return in.slots[i*SlotLen : (i+1)*SlotLen] }

// Link is the sender as a packet socket tells it.
func (in *RecvBatch) Link(i int) *unix.RawSockaddrLinklayer {
	return (*unix.RawSockaddrLinklayer)(unsafe.Pointer(&in.names[i]))
}

// From is the sender as a UDP socket tells it, of either family. A link-local address has no zone: Local tells the
// link.
func (in *RecvBatch) From(i int) netip.AddrPort {
	sa := (*unix.RawSockaddrInet4)(unsafe.Pointer(&in.names[i]))
	if sa.Family == unix.AF_INET6 {
		sa := (*unix.RawSockaddrInet6)(unsafe.Pointer(&in.names[i]))
		return netip.AddrPortFrom(netip.AddrFrom16(sa.Addr), Ntohs(sa.Port))
	}
	return netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), Ntohs(sa.Port))
}

// Local is the address of this host that a UDP socket received a packet at, and the index of the link: the socket has
// IP_PKTINFO or IPV6_RECVPKTINFO. ok is false for one that was sent to a group or to everybody.
func (in *RecvBatch) Local(i int) (at netip.Addr, link int, ok bool) {
	if data := in.Message(i, unix.IPPROTO_IP, unix.IP_PKTINFO); len(data) >= unix.SizeofInet4Pktinfo {
		info := (*unix.Inet4Pktinfo)(unsafe.Pointer(&data[0]))
		return netip.AddrFrom4(info.Addr), int(info.Ifindex), info.Addr == info.Spec_dst
	}
	if data := in.Message(i, unix.IPPROTO_IPV6, unix.IPV6_PKTINFO); len(data) >= unix.SizeofInet6Pktinfo {
		info := (*unix.Inet6Pktinfo)(unsafe.Pointer(&data[0]))
		return netip.AddrFrom16(info.Addr), int(info.Ifindex), info.Addr[0] != 0xff
	}
	return netip.Addr{}, 0, false
}

// Message is the data of the first control message of a level and type, nil where there is none.
func (in *RecvBatch) Message(i, level, kind int) []byte {
	control := in.control[i*controlLen:]
	control = control[:min(int(in.headers[i].hdr.Controllen), controlLen)]
	for len(control) >= unix.SizeofCmsghdr {
		header := (*unix.Cmsghdr)(unsafe.Pointer(&control[0]))
		n := int(header.Len)
		if n < unix.SizeofCmsghdr || n > len(control) {
			return nil
		}
		if int(header.Level) == level && int(header.Type) == kind {
			return control[unix.CmsgLen(0):n]
		}
		next := unix.CmsgSpace(n - unix.CmsgLen(0))
		if next > len(control) {
			return nil
		}
		control = control[next:]
	}
	return nil
}

// Htons turns a number into network order for the kernel's structures.
func Htons(v uint16) uint16 {
	var b [2]byte
	binary.BigEndian.PutUint16(b[:], v)
	return binary.NativeEndian.Uint16(b[:])
}

// Ntohs is the way back.
func Ntohs(v uint16) uint16 { return Htons(v) }
