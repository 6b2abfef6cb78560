package relay

import (
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// outbox collects packets for one socket and sends them with one system call.
//
// Consecutive datagrams of one length between the same two addresses, as a burst of machines that boot makes them,
// become one message with segments (UDP_SEGMENT, udp(7)): the kernel takes them through its stack together and splits
// them at the end of the way. That is a wire or a UDP socket; a packet socket on the same node, where there is no wire,
// gets them all as one, so it has to be asked for ([Config].Segments). Where a device cannot do it the kernel refuses,
// and the outbox sends them one by one from then on.
type outbox struct {
	headers []mmsghdr
	iovs    []unix.Iovec
	inet    []unix.RawSockaddrInet4
	link    []unix.RawSockaddrLinklayer
	control []byte
	failed  func(errno unix.Errno)

	packets  int  // in iovs
	messages int  // in headers, each of one packet or of several segments
	whole    bool // no segments: not asked for, or refused

	// The message that was added last, for datagrams.
	to   peer
	from [4]byte
	size int
	open bool // it may take another segment

	// The state of a flush.
	send   func(fd uintptr) bool
	at     int
	waited bool
}

func newOutbox(segments bool, failed func(errno unix.Errno)) *outbox {
	out := &outbox{
		whole:   !segments,
		failed:  failed,
		headers: make([]mmsghdr, batch),
		iovs:    make([]unix.Iovec, batch),
		inet:    make([]unix.RawSockaddrInet4, batch),
		link:    make([]unix.RawSockaddrLinklayer, batch),
		control: make([]byte, batch*controlLen),
	}
	out.send = out.write
	for i := range out.headers {
		out.inet[i].Family = unix.AF_INET
		out.link[i].Family = unix.AF_PACKET
		out.link[i].Protocol = htons(unix.ETH_P_IP)
	}
	return out
}

func (out *outbox) full() bool { return out.packets == batch }

// add puts the bytes into a message of their own; they must stay as they are until flush.
func (out *outbox) add(b []byte) *unix.Msghdr {
	header := &out.headers[out.messages].hdr
	header.Iov = &out.iovs[out.packets]
	header.SetIovlen(1)
	out.messages++
	out.append(b)
	return header
}

func (out *outbox) append(b []byte) {
	out.iovs[out.packets].Base = &b[0]
	out.iovs[out.packets].SetLen(len(b))
	out.packets++
}

// Lengths of control data: IP_PKTINFO, and UDP_SEGMENT behind it.
var (
	infoSpace    = unix.CmsgSpace(unix.SizeofInet4Pktinfo)
	segmentSpace = unix.CmsgSpace(2)
)

// A segment has to fit an MTU, and all of them together the largest IP datagram.
const (
	maxSegment  = 1200
	maxSegments = 65000
)

// addUDP sends b to an address, from an address of this host.
func (out *outbox) addUDP(b []byte, to peer, from [4]byte) {
	if out.open && out.size == len(b) && out.to == to && out.from == from {
		header := &out.headers[out.messages-1].hdr
		if segments := int(header.Iovlen) + 1; segments*len(b) <= maxSegments {
			out.append(b)
			header.SetIovlen(segments)
			header.SetControllen(infoSpace + segmentSpace)
			return
		}
	}
	i := out.messages
	header := out.add(b)
	out.to, out.from, out.size, out.open = to, from, len(b), !out.whole && len(b) <= maxSegment
	sa := &out.inet[i]
	sa.Addr, sa.Port = to.ip, htons(to.port)
	header.Name = (*byte)(unsafe.Pointer(sa))
	header.Namelen = unix.SizeofSockaddrInet4
	control := out.control[i*controlLen : (i+1)*controlLen]
	info := (*unix.Inet4Pktinfo)(putCmsg(control, unix.IPPROTO_IP, unix.IP_PKTINFO, unix.SizeofInet4Pktinfo))
	*info = unix.Inet4Pktinfo{Spec_dst: from}
	segment := (*uint16)(putCmsg(control[infoSpace:], unix.IPPROTO_UDP, unix.UDP_SEGMENT, 2))
	*segment = uint16(len(b))
	header.Control = &control[0]
	header.SetControllen(infoSpace) // the rest counts when there is a second segment
}

// putCmsg writes a control message's header and returns where its data goes.
func putCmsg(b []byte, level, kind int32, length int) unsafe.Pointer {
	cmsg := (*unix.Cmsghdr)(unsafe.Pointer(&b[0]))
	cmsg.Level, cmsg.Type = level, kind
	cmsg.SetLen(unix.CmsgLen(length))
	return unsafe.Pointer(&b[unix.CmsgLen(0)])
}

// addFrame sends a whole Ethernet frame out of an interface.
func (out *outbox) addFrame(b []byte, ifindex int) {
	i := out.messages
	header := out.add(b)
	sa := &out.link[i]
	sa.Ifindex = int32(ifindex)
	header.Name = (*byte)(unsafe.Pointer(sa))
	header.Namelen = unix.SizeofSockaddrLinklayer
}

// fullWait bounds how long a sender waits for room in a socket's buffer before it drops.
const fullWait = 20 * time.Millisecond

// flush sends what was added through the socket. It calls failed for each packet that the kernel refused and goes
// on with the next.
func (out *outbox) flush(s *socket) {
	if out.packets == 0 {
		return
	}
	out.at, out.waited = 0, false
	// Write holds the descriptor against a concurrent Close, whose number the kernel would give away again.
	if err := s.conn.Write(out.send); err != nil {
		for ; out.at < out.messages; out.at++ {
			out.refused(unix.EBADF)
		}
	}
	out.clear()
}

func (out *outbox) clear() { out.packets, out.messages, out.open = 0, 0, false }

// refused tells of every packet of the message that flush is at.
func (out *outbox) refused(errno unix.Errno) {
	for range out.headers[out.at].hdr.Iovlen {
		out.failed(errno)
	}
}

// write is flush's system calls.
func (out *outbox) write(fd uintptr) bool {
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
	return true
}

// split sends the segments of the message that flush is at one by one.
func (out *outbox) split(fd uintptr) {
	message := out.headers[out.at].hdr
	segments := unsafe.Slice(message.Iov, message.Iovlen)
	message.SetIovlen(1)
	message.SetControllen(infoSpace)
	for i := range segments {
		message.Iov = &segments[i]
		if _, _, errno := unix.RawSyscall(unix.SYS_SENDMSG, fd, uintptr(unsafe.Pointer(&message)),
			unix.MSG_DONTWAIT); errno != 0 {
			out.failed(errno)
		}
	}
}
