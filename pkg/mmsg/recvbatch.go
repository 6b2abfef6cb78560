package mmsg

import (
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Lengths of the slots that NewRecvBatch makes.
const (
	Received = 2200 // longer packets are truncated, which Packet tells
	SlotLen  = 2560
)

// RecvBatch is the memory that a reader receives its packets in. Each packet has a slot: room in front for what is put
// before it, the packet as received, and room behind it.
type RecvBatch struct {
	headers []header
	iovs    []unix.Iovec
	names   []Sockaddr
	control [][controlLen]byte
	slots   [][]byte
	front   int // bytes left free in front of a packet
	used    int // how many headers the kernel has written to
}

// NewRecvBatch makes a batch for packets of at most Received bytes, with that many bytes free in front of each.
func NewRecvBatch(front int) *RecvBatch {
	slots, memory := make([][]byte, Batch), make([]byte, Batch*SlotLen)
	for i := range slots {
		slots[i] = memory[i*SlotLen : (i+1)*SlotLen : (i+1)*SlotLen]
	}
	return NewRecvBatchOf(slots, front, Received)
}

// NewRecvBatchOf makes a batch of given slots, for packets of at most length bytes.
func NewRecvBatchOf(slots [][]byte, front, length int) *RecvBatch {
	in := &RecvBatch{
		headers: make([]header, len(slots)),
		iovs:    make([]unix.Iovec, len(slots)),
		names:   make([]Sockaddr, len(slots)),
		control: make([][controlLen]byte, len(slots)),
		slots:   slots,
		front:   front,
		used:    len(slots),
	}
	for i := range in.headers {
		in.iovs[i].Base = &slots[i][front]
		in.iovs[i].SetLen(length)
		h := &in.headers[i]
		h.Iov = &in.iovs[i]
		h.SetIovlen(1)
		h.Name = (*byte)(in.names[i].Pointer())
		h.Control = &in.control[i][0]
	}
	return in
}

// Receive replaces the content by at most limit packets. The flags (recvmmsg(2)) say whether the call blocks for a
// packet; the error is EAGAIN when none has come, and EINTR when a signal came first.
func (in *RecvBatch) Receive(fd, limit, flags int) (int, unix.Errno) {
	// On a quiet network other programs have used the caches since the last packet: only headers that the kernel has
	// written to are touched.
	for i := range in.used {
		h := &in.headers[i]
		h.Namelen = uint32(unsafe.Sizeof(in.names[i].raw))
		h.SetControllen(controlLen)
		h.Flags = 0
	}
	in.used = 0
	n, errno := call(unix.SYS_RECVMMSG, fd, in.headers[:min(limit, len(in.headers))], flags|unix.MSG_TRUNC)
	in.used = n
	return n, errno
}

// Packet returns packet i, with capacity up to the end of its slot, and whether it is whole.
func (in *RecvBatch) Packet(i int) (b []byte, whole bool) {
	h := &in.headers[i]
	end := in.front + min(int(h.n), int(in.iovs[i].Len))
	return in.slots[i][in.front:end], h.Flags&unix.MSG_TRUNC == 0
}

// Slot returns the whole slot of packet i.
func (in *RecvBatch) Slot(i int) []byte { return in.slots[i] }

// Swap puts another slot of the same length in the place of slot i, and returns that: a packet is handed on without a
// copy.
func (in *RecvBatch) Swap(i int, slot []byte) []byte {
	slot, in.slots[i] = in.slots[i], slot
	in.iovs[i].Base = &in.slots[i][in.front]
	return slot
}

// Link is the sender of packet i as a packet socket tells it.
func (in *RecvBatch) Link(i int) *unix.RawSockaddrLinklayer { return in.names[i].link() }

// From is the sender of packet i as a UDP socket tells it.
func (in *RecvBatch) From(i int) *Sockaddr { return &in.names[i] }

// Local is the address of this host that a UDP socket received packet i at, and the index of the link that it came
// by: the socket has IP_PKTINFO or IPV6_RECVPKTINFO. A packet is direct where it was sent to that address. For an
// IPv4 broadcast or group, Local is an address of the link, since none can be answered from those (RFC 1122 section
// 3.2.1.3); for an IPv6 group it is the group. The address is invalid where the kernel told none.
func (in *RecvBatch) Local(i int) (at netip.Addr, link int, direct bool) {
	if data := in.Message(i, unix.IPPROTO_IP, unix.IP_PKTINFO); len(data) >= unix.SizeofInet4Pktinfo {
		info := (*unix.Inet4Pktinfo)(unsafe.Pointer(&data[0]))
		if info.Spec_dst == [4]byte{} {
			return netip.AddrFrom4(info.Addr), int(info.Ifindex), false
		}
		return netip.AddrFrom4(info.Spec_dst), int(info.Ifindex), info.Addr == info.Spec_dst
	}
	if data := in.Message(i, unix.IPPROTO_IPV6, unix.IPV6_PKTINFO); len(data) >= unix.SizeofInet6Pktinfo {
		info := (*unix.Inet6Pktinfo)(unsafe.Pointer(&data[0]))
		return netip.AddrFrom16(info.Addr).Unmap(), int(info.Ifindex), info.Addr[0] != 0xff
	}
	return netip.Addr{}, 0, false
}

// Message is the data of the first control message of a level and type that came with packet i, nil where there is
// none.
func (in *RecvBatch) Message(i, level, kind int) []byte {
	return find(in.control[i][:min(int(in.headers[i].Controllen), controlLen)], level, kind)
}
