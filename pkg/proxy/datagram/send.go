package datagram

import (
	"encoding/binary"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// sendPatience is how long a full send buffer is waited for, in milliseconds.
	sendPatience = 5
	// maxSegment is the largest datagram that travels in a train, in bytes: with its headers it fits into the
	// smallest MTU of IPv6, and so through any tunnel.
	maxSegment = 1200
	// maxSegments is the most datagrams in a train that all kernels take (UDP_MAX_SEGMENTS).
	maxSegments = 64
)

// Trains lets datagrams that follow each other to one destination cross the kernel as one packet, which is cut
// apart at the end of the way (UDP_SEGMENT, Linux 4.18): all of a train have one size, but for the last, which may
// be shorter. Order is kept. Where the way cannot carry trains, the socket stops to use them by itself.
func (s *Socket) Trains() { s.trains = true }

// Send sends every datagram through the socket and empties the batch. The kernel's refusal of one does not keep
// back the others: failed counts them, and err is the last reason.
func (b *Batch) Send(s *Socket) (failed int, err error) {
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

// couple writes the wire for the datagrams from the given one on, and returns the number of its messages.
func (b *Batch) couple(s *Socket, from int) (n int) {
	for i := from; i < b.n; n++ {
		length := 1
		if s.trains {
			length = b.train(i)
		}
		for k := i; k < i+length; k++ {
			b.iovecs[k].Base = unsafe.SliceData(b.data[k])
			b.iovecs[k].SetLen(len(b.data[k]))
		}
		h := &b.wire[n].hdr
		*h = b.headers[i].hdr
		h.Flags = 0
		h.Iov = &b.iovecs[i]
		h.SetIovlen(length)
		if length > 1 {
			control := &b.control[i]
			c := (*unix.Cmsghdr)(unsafe.Pointer(&control[0]))
			c.Level, c.Type = unix.IPPROTO_UDP, unix.UDP_SEGMENT
			c.SetLen(unix.CmsgLen(2))
			binary.NativeEndian.PutUint16(control[unix.CmsgLen(0):], uint16(len(b.data[i])))
			h.SetControllen(unix.CmsgSpace(2))
		}
		b.first[n] = i
		i += length
	}
	b.first[n] = b.n
	return n
}

// train is the number of datagrams from i on that may travel together.
func (b *Batch) train(i int) int {
	size := len(b.data[i])
	if size == 0 || size > maxSegment || b.headers[i].hdr.Controllen != 0 {
		return 1
	}
	total, n := size, 1
	for k := i + 1; k < b.n && n < maxSegments; k++ {
		next := len(b.data[k])
		if next == 0 || next > size || total+next > MaxSize || b.headers[k].hdr.Controllen != 0 ||
			b.names[k] != b.names[i] {
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
			s.trains = false // EIO, EINVAL, EMSGSIZE: not on this way
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
