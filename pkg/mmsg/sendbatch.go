package mmsg

import (
	"net/netip"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// SendBatch collects packets for one socket and sends them with one system call.
//
// Consecutive datagrams with the same source and destination and the same length (the last may be shorter) become one
// message with segments (UDP_SEGMENT, udp(7)); bursts of booting machines cause such runs. The kernel splits the
// message only at the device or the receiving UDP socket. A packet socket on the same node gets it unsplit; so
// NewSendBatch's caller must ask for segments. If the device cannot send them, the batch sends single datagrams from
// then on.
type SendBatch struct {
	headers  []header
	iovs     []unix.Iovec
	names    []Sockaddr
	control  [][controlLen]byte
	failed   func(errno unix.Errno)
	segments bool // asked for, and not refused

	packets  int // in iovs
	messages int // in headers, each of one packet or of several segments

	// The message that was added last, for datagrams.
	to   netip.AddrPort
	from netip.Addr
	via  int // the link that it leaves by
	size int
	open bool // it may take another segment

	// The state of a Flush.
	send   func(uintptr)
	fd, at int
}

// NewSendBatch makes a batch. segments has bursts leave as segments; failed is called for each packet that the kernel
// refused.
func NewSendBatch(segments bool, failed func(errno unix.Errno)) *SendBatch {
	out := &SendBatch{
		headers:  make([]header, Batch),
		iovs:     make([]unix.Iovec, Batch),
		names:    make([]Sockaddr, Batch),
		control:  make([][controlLen]byte, Batch),
		failed:   failed,
		segments: segments,
	}
	out.send = func(uintptr) { out.Flush(out.fd) }
	return out
}

// Len is how many packets were added.
func (out *SendBatch) Len() int { return out.packets }

// Full tells that a flush is due before another packet is added.
func (out *SendBatch) Full() bool { return out.packets == Batch }

// Clear forgets what was added.
func (out *SendBatch) Clear() { out.packets, out.messages, out.open = 0, 0, false }

// add puts the bytes into a message of their own, whose name is to be written next. The bytes must stay as they are
// until the flush.
func (out *SendBatch) add(b []byte) (h *header, name *Sockaddr) {
	h, name = &out.headers[out.messages], &out.names[out.messages]
	h.Name, h.Iov = (*byte)(name.Pointer()), &out.iovs[out.packets]
	h.SetIovlen(1)
	h.SetControllen(0)
	out.messages++
	out.append(b)
	return h, name
}

func (out *SendBatch) append(b []byte) {
	out.iovs[out.packets].Base = unsafe.SliceData(b)
	out.iovs[out.packets].SetLen(len(b))
	out.packets++
}

// AddFrame sends a whole Ethernet frame out of an interface.
func (out *SendBatch) AddFrame(b []byte, ifindex int) {
	h, name := out.add(b)
	name.setLink(ifindex, *(*uint16)(unsafe.Pointer(&b[etherType])))
	h.Namelen, out.open = name.n, false
}

// etherType is where a frame says what it carries.
const etherType = 12

// A segment and its headers must fit into IPv6's smallest MTU (1280), hence into any tunnel's; a whole message must
// fit into the largest IP datagram. All kernels allow Batch segments in a message.
const (
	maxSegment  = 1200
	maxSegments = 65000
)

// segmentSpace is the length of UDP_SEGMENT, behind the control message that names the source.
var segmentSpace = unix.CmsgSpace(2)

// AddUDP sends b to an address. from is the source, invalid where the kernel is to choose it. link is the index of the
// link that b leaves by, 0 where the kernel's routing table chooses it; a link-local address needs one.
func (out *SendBatch) AddUDP(b []byte, to netip.AddrPort, from netip.Addr, link int) {
	if out.open && len(b) > 0 && len(b) <= out.size && out.to == to && out.from == from && out.via == link {
		h := &out.headers[out.messages-1]
		if n := int(h.Iovlen); (n+1)*out.size <= maxSegments {
			if n == 1 {
				h.SetControllen(int(h.Controllen) + segmentSpace)
			}
			h.SetIovlen(n + 1)
			out.append(b)
			out.open = len(b) == out.size
			return
		}
	}
	control := out.control[out.messages][:]
	h, name := out.add(b)
	name.Set(to, uint32(link))
	h.Namelen, h.Control = name.n, &control[0]
	out.to, out.from, out.via = to, from, link
	out.size, out.open = len(b), out.segments && len(b) > 0 && len(b) <= maxSegment
	info := 0
	switch {
	case !from.IsValid():
	case to.Addr().Is4():
		info = unix.CmsgSpace(unix.SizeofInet4Pktinfo)
		*(*unix.Inet4Pktinfo)(putControl(control, unix.IPPROTO_IP, unix.IP_PKTINFO, unix.SizeofInet4Pktinfo)) =
			unix.Inet4Pktinfo{Spec_dst: from.As4(), Ifindex: int32(link)}
	default:
		info = unix.CmsgSpace(unix.SizeofInet6Pktinfo)
		*(*unix.Inet6Pktinfo)(putControl(control, unix.IPPROTO_IPV6, unix.IPV6_PKTINFO, unix.SizeofInet6Pktinfo)) =
			unix.Inet6Pktinfo{Addr: from.As16(), Ifindex: uint32(link)}
	}
	h.SetControllen(info)
	// UDP_SEGMENT counts from the second segment on.
	*(*uint16)(putControl(control[info:], unix.IPPROTO_UDP, unix.UDP_SEGMENT, 2)) = uint16(len(b))
}

// fullWait bounds how long a flush waits for room in a socket's buffer before it gives packets up.
const fullWait = 20 * time.Millisecond

// FlushHeld is Flush for a socket that another goroutine may close. fd is conn's descriptor; conn.Control keeps it
// open during the flush. If the socket is closed, failed is called with EBADF for each packet.
func (out *SendBatch) FlushHeld(conn syscall.RawConn, fd int) {
	if out.packets == 0 {
		return
	}
	out.fd = fd
	if err := conn.Control(out.send); err != nil {
		for out.at = 0; out.at < out.messages; out.at++ {
			out.refused(unix.EBADF)
		}
		out.Clear()
	}
}

// Flush sends all packets by fd. It calls failed for each packet that the kernel refused, and goes on. If the send
// buffer is full, it waits once, for at most fullWait; after that it refuses the packets that do not fit.
func (out *SendBatch) Flush(fd int) {
	waited, retried := false, false
	for out.at = 0; out.at < out.messages; {
		n, errno := call(unix.SYS_SENDMMSG, fd, out.headers[out.at:out.messages], unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		switch {
		case errno == 0:
			out.at += n
			retried = false
		case errno == unix.EINTR:
		case errno == unix.EAGAIN && !waited:
			waited = true
			_, _ = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}, int(fullWait.Milliseconds()))
		case errno != unix.EAGAIN && !retried:
			retried = true // the error may be the one that ICMP reported of an earlier packet (IP_RECVERR)
		case out.headers[out.at].Iovlen > 1 && (errno == unix.EIO || errno == unix.EINVAL || errno == unix.EMSGSIZE):
			out.unsegment()
		default:
			out.refused(errno)
			out.at++
			retried = false
		}
	}
	out.Clear()
}

// refused calls failed for each packet of the current message.
func (out *SendBatch) refused(errno unix.Errno) {
	for range out.headers[out.at].Iovlen {
		out.failed(errno)
	}
}

// unsegment gives each unsent packet a message of its own, and turns segments off for later packets.
func (out *SendBatch) unsegment() {
	out.segments = false
	at := 0
	for _, h := range out.headers[:out.at] {
		at += int(h.Iovlen)
	}
	to := out.at + out.packets - at
	last := to
	for i := out.messages - 1; i >= out.at; i-- { // from the end, since a message's packets take places behind its own
		h := out.headers[i]
		packets := unsafe.Slice(h.Iov, h.Iovlen)
		if len(packets) > 1 {
			h.SetControllen(int(h.Controllen) - segmentSpace)
			h.SetIovlen(1)
		}
		for k := len(packets) - 1; k >= 0; k-- {
			to--
			h.Iov = &packets[k]
			out.headers[to] = h
		}
	}
	out.messages = last
}
