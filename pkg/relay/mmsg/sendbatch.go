package mmsg

import (
	"net/netip"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// SendBatch collects packets for one socket and sends them with one system call.
//
// Consecutive datagrams of one length between the same two addresses, as a burst of machines that boot makes them,
// become one message with segments (UDP_SEGMENT, udp(7)): the kernel takes them through its stack together and splits
// them at the end of the way. That is a wire or a UDP socket; a packet socket on the same node, where there is no wire,
// gets them all as one, so it has to be asked for. Where a device cannot do it the kernel refuses,
// and the batch sends them one by one from then on.
type SendBatch struct {
	headers []mmsghdr
	iovs    []unix.Iovec
	inet4   []unix.RawSockaddrInet4
	inet6   []unix.RawSockaddrInet6
	link    []unix.RawSockaddrLinklayer
	control []byte
	failed  func(errno unix.Errno)

	packets  int  // in iovs
	messages int  // in headers, each of one packet or of several segments
	whole    bool // no segments: not asked for, or refused

	// The message that was added last, for datagrams.
	to   netip.AddrPort
	from netip.Addr
	via  int // the link that it leaves by
	info int // length of the control message that names the source
	size int
	open bool // it may take another segment

	// The state of a Flush.
	send   func(epoll uintptr)
	fd     int
	at     int
	waited bool
}

// NewSendBatch makes a batch. segments has bursts leave as segments; failed is called for each packet that the kernel
// refused.
func NewSendBatch(segments bool, failed func(errno unix.Errno)) *SendBatch {
	out := &SendBatch{
		whole:   !segments,
		failed:  failed,
		headers: make([]mmsghdr, Batch),
		iovs:    make([]unix.Iovec, Batch),
		inet4:   make([]unix.RawSockaddrInet4, Batch),
		inet6:   make([]unix.RawSockaddrInet6, Batch),
		link:    make([]unix.RawSockaddrLinklayer, Batch),
		control: make([]byte, Batch*controlLen),
	}
	out.send = out.write
	for i := range out.headers {
		out.inet4[i].Family = unix.AF_INET
		out.inet6[i].Family = unix.AF_INET6
		out.link[i].Family = unix.AF_PACKET
	}
	return out
}

// Full tells that Flush is due before another packet is added.
func (out *SendBatch) Full() bool { return out.packets == Batch }

// add puts the bytes into a message of their own; they must stay as they are until Flush.
func (out *SendBatch) add(b []byte) *unix.Msghdr {
	header := &out.headers[out.messages].hdr
	header.Iov = &out.iovs[out.packets]
	header.SetIovlen(1)
	out.messages++
	out.append(b)
	return header
}

func (out *SendBatch) append(b []byte) {
	out.iovs[out.packets].Base = &b[0]
	out.iovs[out.packets].SetLen(len(b))
	out.packets++
}

// segmentSpace is the length of UDP_SEGMENT, behind the control message that names the source.
var segmentSpace = unix.CmsgSpace(2)

// A segment has to fit an MTU, and all of them together the largest IP datagram.
const (
	maxSegment  = 1200
	maxSegments = 65000
)

// AddUDP sends b to an address, from an address of this host. link is the index of the link that it leaves by, 0 where
// that is the routes' business; a link-local address needs one.
func (out *SendBatch) AddUDP(b []byte, to netip.AddrPort, from netip.Addr, link int) {
	if out.open && out.size == len(b) && out.to == to && out.from == from && out.via == link {
		header := &out.headers[out.messages-1].hdr
		if segments := int(header.Iovlen) + 1; segments*len(b) <= maxSegments {
			out.append(b)
			header.SetIovlen(segments)
			header.SetControllen(out.info + segmentSpace)
			return
		}
	}
	i := out.messages
	header := out.add(b)
	out.to, out.from, out.via = to, from, link
	out.size, out.open = len(b), !out.whole && len(b) <= maxSegment
	control := out.control[i*controlLen : (i+1)*controlLen]
	if to.Addr().Is4() {
		sa := &out.inet4[i]
		sa.Addr, sa.Port = to.Addr().As4(), Htons(to.Port())
		header.Name, header.Namelen = (*byte)(unsafe.Pointer(sa)), unix.SizeofSockaddrInet4
		info := (*unix.Inet4Pktinfo)(putCmsg(control, unix.IPPROTO_IP, unix.IP_PKTINFO, unix.SizeofInet4Pktinfo))
		*info = unix.Inet4Pktinfo{Spec_dst: from.As4(), Ifindex: int32(link)}
		out.info = unix.CmsgSpace(unix.SizeofInet4Pktinfo)
	} else {
		sa := &out.inet6[i]
		sa.Addr, sa.Port, sa.Scope_id = to.Addr().As16(), Htons(to.Port()), uint32(link)
		header.Name, header.Namelen = (*byte)(unsafe.Pointer(sa)), unix.SizeofSockaddrInet6
		info := (*unix.Inet6Pktinfo)(putCmsg(control, unix.IPPROTO_IPV6, unix.IPV6_PKTINFO, unix.SizeofInet6Pktinfo))
		*info = unix.Inet6Pktinfo{Addr: from.As16(), Ifindex: uint32(link)}
		out.info = unix.CmsgSpace(unix.SizeofInet6Pktinfo)
	}
	segment := (*uint16)(putCmsg(control[out.info:], unix.IPPROTO_UDP, unix.UDP_SEGMENT, 2))
	*segment = uint16(len(b))
	header.Control = &control[0]
	header.SetControllen(out.info) // the rest counts when there is a second segment
}

// putCmsg writes a control message's header and returns where its data goes.
func putCmsg(b []byte, level, kind int32, length int) unsafe.Pointer {
	cmsg := (*unix.Cmsghdr)(unsafe.Pointer(&b[0]))
	cmsg.Level, cmsg.Type = level, kind
	cmsg.SetLen(unix.CmsgLen(length))
	return unsafe.Pointer(&b[unix.CmsgLen(0)])
}

// AddFrame sends a whole Ethernet frame out of an interface.
func (out *SendBatch) AddFrame(b []byte, ifindex int) {
	i := out.messages
	header := out.add(b)
	sa := &out.link[i]
	sa.Ifindex = int32(ifindex)
	sa.Protocol = *(*uint16)(unsafe.Pointer(&b[etherType]))
	header.Name = (*byte)(unsafe.Pointer(sa))
	header.Namelen = unix.SizeofSockaddrLinklayer
}

// etherType is where a frame says what it carries.
const etherType = 12

// fullWait bounds how long a sender waits for room in a socket's buffer before it drops.
const fullWait = 20 * time.Millisecond

// Flush sends what was added through the socket. It calls failed for each packet that the kernel refused and goes
// on with the next.
func (out *SendBatch) Flush(s *Socket) {
	if out.packets == 0 {
		return
	}
	out.at, out.waited, out.fd = 0, false, s.fd
	// Control holds the descriptor against a concurrent Close, whose number the kernel would give away again. The
	// runtime's poller has no part in it: write waits itself.
	if err := s.conn.Control(out.send); err != nil {
		for ; out.at < out.messages; out.at++ {
			out.refused(unix.EBADF)
		}
	}
	out.Clear()
}

// Clear forgets what was added.
func (out *SendBatch) Clear() { out.packets, out.messages, out.open = 0, 0, false }

// refused tells of every packet of the message that Flush is at.
func (out *SendBatch) refused(errno unix.Errno) {
	for range out.headers[out.at].hdr.Iovlen {
		out.failed(errno)
	}
}

// write is Flush's system calls.
func (out *SendBatch) write(uintptr) {
	fd := uintptr(out.fd)
	for out.at < out.messages {
		n, _, errno := unix.RawSyscall6(unix.SYS_SENDMMSG, fd, uintptr(unsafe.Pointer(&out.headers[out.at])),
			uintptr(out.messages-out.at), unix.MSG_DONTWAIT, 0, 0)
		switch {
		case errno == 0:
			out.at += int(n)
		case errno == unix.EINTR:
		case errno == unix.EAGAIN && !out.waited:
			out.waited = true
			_, _ = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}, int(fullWait.Milliseconds()))
		case out.headers[out.at].hdr.Iovlen > 1 && (errno == unix.EIO || errno == unix.EINVAL || errno == unix.EMSGSIZE):
			out.whole = true
			out.split(fd)
			out.at++
		default:
			out.refused(errno)
			out.at++
		}
	}
}

// split sends the segments of the message that Flush is at one by one.
func (out *SendBatch) split(fd uintptr) {
	message := out.headers[out.at].hdr
	segments := unsafe.Slice(message.Iov, message.Iovlen)
	message.SetIovlen(1)
	message.SetControllen(infoOf(&message))
	for i := range segments {
		message.Iov = &segments[i]
		if _, _, errno := unix.RawSyscall(unix.SYS_SENDMSG, fd, uintptr(unsafe.Pointer(&message)),
			unix.MSG_DONTWAIT); errno != 0 {
			out.failed(errno)
		}
	}
}

// infoOf is the length of the control message that names a message's source.
func infoOf(message *unix.Msghdr) int {
	return unix.CmsgSpace(int((*unix.Cmsghdr)(unsafe.Pointer(message.Control)).Len) - unix.CmsgLen(0))
}

// Len is how many packets were added.
func (out *SendBatch) Len() int { return out.packets }
