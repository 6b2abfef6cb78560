package datagram

import (
	"encoding/binary"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// sendPatience is how long a full send buffer is waited for, in milliseconds.
	sendPatience = 5
	// maxSegment is the largest datagram that is sent as a segment, in bytes: with its headers it fits into the
	// smallest MTU of IPv6, and so through any tunnel.
	maxSegment = 1200
	// maxSegments is the most segments of a packet that all kernels take (UDP_MAX_SEGMENTS).
	maxSegments = 64
)

// EnableGSO lets consecutive datagrams to one destination cross the kernel as one packet, which the interface or its
// driver segments (generic segmentation offload, UDP_SEGMENT, Linux 4.18): all segments have one size, but for the
// last, which may be shorter. Where the interface cannot do that, the socket sends datagrams one by one from then on.
func (s *Socket) EnableGSO() { s.gso = true }

// Send sends every datagram through the socket and empties the batch. The kernel's refusal of one does not keep
// back the others: failed counts them, and err is the last reason.
func (b *Batch) Send(s *Socket) (failed int, err error) {
	if s.gso {
		b.arrange()
	} else {
		for i := range b.n {
			b.order[i] = i
		}
	}
	for from := 0; from < b.n; {
		n := b.couple(s, from)
		var f int
		var e error
		from, f, e = b.sendWire(s, n)
		if failed += f; e != nil {
			err = e
		}
	}
	b.n = 0
	return failed, err
}

// arrange orders the datagrams for many segments a packet: the longest first, then what has its size, then the longest
// of what is shorter. It takes the next datagram of a stream only after the one before.
func (b *Batch) arrange() {
	b.heads = b.heads[:0]
	for i := range b.n {
		b.after[i] = -1
		fresh := true
		for k := i - 1; k >= 0; k-- {
			if b.tags[k] == b.tags[i] {
				b.after[k] = i
				fresh = false
				break
			}
		}
		if fresh {
			b.heads = append(b.heads, i)
		}
	}
	for at := 0; at < b.n; {
		first := b.pop(b.longest(-1, bufferSize))
		b.order[at] = first
		at++
		size := len(b.data[first])
		for at < b.n {
			h := b.longest(first, size)
			if h < 0 {
				break
			}
			next := b.pop(h)
			b.order[at] = next
			at++
			if len(b.data[next]) < size {
				break
			}
		}
	}
}

// longest finds the head with the most bytes of those that have no more than limit and, where first is one, go
// where first goes. The earliest wins. It returns -1 when there is none.
func (b *Batch) longest(first, limit int) int {
	found, size := -1, -1
	for h, i := range b.heads {
		n := len(b.data[i])
		if n > size && n <= limit && (first < 0 || b.names[i] == b.names[first]) {
			found, size = h, n
			if first >= 0 && n == limit {
				break
			}
		}
	}
	return found
}

// pop takes a stream's head and puts the next one of the stream into its place.
func (b *Batch) pop(h int) int {
	i := b.heads[h]
	if b.after[i] >= 0 {
		b.heads[h] = b.after[i]
	} else {
		b.heads = append(b.heads[:h], b.heads[h+1:]...)
	}
	return i
}

// couple writes the wire for the datagrams from the given place in the order on, and returns the number of its
// messages.
func (b *Batch) couple(s *Socket, from int) (n int) {
	for at := from; at < b.n; n++ {
		length := 1
		if s.gso {
			length = b.gsoRun(at)
		}
		for k := at; k < at+length; k++ {
			data := b.data[b.order[k]]
			b.iovecs[k].Base = unsafe.SliceData(data)
			b.iovecs[k].SetLen(len(data))
		}
		i := b.order[at]
		h := &b.wire[n].hdr
		*h = b.headers[i].hdr
		h.Flags = 0
		h.Iov = &b.iovecs[at]
		h.SetIovlen(length)
		if length > 1 {
			control := &b.control[i]
			c := (*unix.Cmsghdr)(unsafe.Pointer(&control[0]))
			c.Level, c.Type = unix.IPPROTO_UDP, unix.UDP_SEGMENT
			c.SetLen(unix.CmsgLen(2))
			binary.NativeEndian.PutUint16(control[unix.CmsgLen(0):], uint16(len(b.data[i])))
			h.SetControllen(unix.CmsgSpace(2))
		}
		b.first[n] = at
		at += length
	}
	b.first[n] = b.n
	return n
}

// gsoRun is how many datagrams, from a place in the order on, may be sent as one packet.
func (b *Batch) gsoRun(at int) int {
	i := b.order[at]
	size := len(b.data[i])
	if size == 0 || size > maxSegment || b.headers[i].hdr.Controllen != 0 {
		return 1
	}
	total, n := size, 1
	for _, k := range b.order[at+1 : b.n] {
		next := len(b.data[k])
		if n == maxSegments || next == 0 || next > size || total+next > MaxSize ||
			b.headers[k].hdr.Controllen != 0 || b.names[k] != b.names[i] {
			break
		}
		total += next
		n++
		if next < size {
			break
		}
	}
	return n
}

// sendWire sends n messages of the wire and returns the first datagram that is still to be sent.
func (b *Batch) sendWire(s *Socket, n int) (next, failed int, err error) {
	waited, retried := false, false
	for sent := 0; sent < n; {
		count, _, errno := unix.RawSyscall6(unix.SYS_SENDMMSG, uintptr(s.fd),
			uintptr(unsafe.Pointer(&b.wire[sent])), uintptr(n-sent), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, 0, 0)
		switch {
		case errno == 0:
			sent += int(count)
			retried = false
		case errno == unix.EINTR:
		case errno == unix.EAGAIN && !waited:
			// A full send buffer is the interface's speed; wait for it once, and not for long.
			waited = true
			_, _ = unix.Poll([]unix.PollFd{{Fd: int32(s.fd), Events: unix.POLLOUT}}, sendPatience)
		case !retried && errno != unix.EAGAIN:
			retried = true // the error may be what ICMP said about an earlier datagram
		case b.first[sent+1]-b.first[sent] > 1 && errno != unix.EAGAIN:
			s.gso = false // EIO, EINVAL, EMSGSIZE: the interface does not segment
			return b.first[sent], failed, err
		default:
			err = errno
			failed += b.first[sent+1] - b.first[sent]
			sent++
			retried = false
		}
	}
	return b.n, failed, err
}
