package mmsg

import (
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Lengths of the slots that NewRecvBatch makes.
const (
	Received = 2200 // Packet reports a longer packet as not whole
	SlotLen  = 2560
)

// RecvBatch is the memory that a reader receives its packets in. Each packet has a slot: headroom free bytes (for a
// header that the caller prepends), the packet, and free bytes behind it.
type RecvBatch struct {
	headers  []header
	iovs     []unix.Iovec
	names    []Sockaddr
	control  [][controlLen]byte
	slots    [][]byte
	headroom int // bytes left free in front of a packet
	used     int // how many headers the kernel has written to
}

// NewRecvBatch makes a batch for packets of at most Received bytes, with headroom bytes free before each.
func NewRecvBatch(headroom int) *RecvBatch {
	slots, memory := make([][]byte, Batch), make([]byte, Batch*SlotLen)
	for i := range slots {
		slots[i] = memory[i*SlotLen : (i+1)*SlotLen : (i+1)*SlotLen]
	}
	return NewRecvBatchOf(slots, headroom, Received)
}

// NewRecvBatchOf makes a batch of given slots, for packets of at most length bytes.
func NewRecvBatchOf(slots [][]byte, headroom, length int) *RecvBatch {
	in := &RecvBatch{
		headers:  make([]header, len(slots)),
		iovs:     make([]unix.Iovec, len(slots)),
		names:    make([]Sockaddr, len(slots)),
		control:  make([][controlLen]byte, len(slots)),
		slots:    slots,
		headroom: headroom,
		used:     len(slots),
	}
	for i := range in.headers {
		in.iovs[i].Base = &slots[i][headroom]
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
	// Only headers that the kernel has written to are reset: on a quiet network the others have left the CPU's caches.
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
	end := in.headroom + min(int(h.n), int(in.iovs[i].Len))
	return in.slots[i][in.headroom:end], h.Flags&unix.MSG_TRUNC == 0
}

// Slot returns the whole slot of packet i.
func (in *RecvBatch) Slot(i int) []byte { return in.slots[i] }

// Swap replaces slot i by a slot of the same length and returns the old one, so that a caller can pass a packet on
// without a copy.
func (in *RecvBatch) Swap(i int, slot []byte) []byte {
	slot, in.slots[i] = in.slots[i], slot
	in.iovs[i].Base = &in.slots[i][in.headroom]
	return slot
}

// Link is the sender of packet i as a packet socket tells it.
func (in *RecvBatch) Link(i int) *unix.RawSockaddrLinklayer { return in.names[i].link() }

// From is the sender of packet i as a UDP socket tells it.
func (in *RecvBatch) From(i int) *Sockaddr { return &in.names[i] }

// Local returns the local address to answer packet i from, the index of the link that it came in by, and whether it
// was sent to that address (direct). The socket needs IP_PKTINFO or IPV6_RECVPKTINFO. For an IPv4 broadcast or
// multicast packet the address is one of the link's, since a reply cannot have a group as its source (RFC 1122 section
// 3.2.1.3); for IPv6 multicast it is the group itself. Without the control message the address is invalid.
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
