package datagram

import (
	"encoding/binary"
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"
)

// controlSize holds an in6_pktinfo and a drop counter, or an extended error with its offender.
const controlSize = 128

// mmsghdr is the kernel's struct of the same name.
type mmsghdr struct {
	hdr unix.Msghdr
	len uint32
}

// A Batch is a number of datagrams that cross the kernel's border in one system call. Its buffers lie outside of Go's
// heap, where memory that no datagram has needed yet costs nothing and does not count for the collector's pace.
// Between Receive and Send a datagram moves from batch to batch by exchange of buffers ([Batch.Take]), not by copy.
type Batch struct {
	headers []mmsghdr
	iovecs  []unix.Iovec
	names   []sockaddr
	control [][controlSize]byte
	buffers [][]byte
	data    [][]byte // what is to be sent
	mapped  []byte   // the buffers' memory, unless they are Go's
	n       int
	dirty   int // how many headers are not as Receive wants them

	wire  []mmsghdr // what Send hands to the kernel: a datagram each, or segments of one packet
	first []int     // the wire's datagrams: order[first[j]] up to order[first[j+1]]
	order []int     // in which the datagrams leave
	tags  []uint32  // of Tag
	after []int     // scratch of arrange
	heads []int     // scratch of arrange
}

// NewBatch makes a batch for size datagrams.
func NewBatch(size int) *Batch {
	b := &Batch{
		headers: make([]mmsghdr, size),
		iovecs:  make([]unix.Iovec, size),
		names:   make([]sockaddr, size),
		control: make([][controlSize]byte, size),
		buffers: make([][]byte, size),
		data:    make([][]byte, size),
		wire:    make([]mmsghdr, size),
		first:   make([]int, size+1),
		order:   make([]int, size),
		tags:    make([]uint32, size),
		after:   make([]int, size),
		heads:   make([]int, 0, size),
		dirty:   size,
	}
	all, err := unix.Mmap(-1, 0, size*bufferSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if b.mapped = all; err != nil {
		all = make([]byte, size*bufferSize)
	}
	for i := range size {
		b.buffers[i] = all[i*bufferSize : (i+1)*bufferSize : (i+1)*bufferSize]
		h := &b.headers[i].hdr
		h.Name = (*byte)(b.names[i].pointer())
		h.Iov = &b.iovecs[i]
		h.SetIovlen(1)
		h.Control = &b.control[i][0]
	}
	return b
}

// Close gives the batch's memory back. Batches that exchanged datagrams are used no more when one of them is closed.
func (b *Batch) Close() {
	if b.mapped != nil {
		_ = unix.Munmap(b.mapped)
	}
	b.mapped, b.buffers, b.data = nil, nil, nil
}

// Len is the number of datagrams in the batch.
func (b *Batch) Len() int { return b.n }

// Free is how many more fit.
func (b *Batch) Free() int { return len(b.headers) - b.n }

// Reset empties the batch.
func (b *Batch) Reset() { b.n = 0 }

// Receive replaces the batch's content by at most limit datagrams that wait at the socket. None is no error.
func (b *Batch) Receive(s *Socket, limit int) error {
	b.n = 0
	limit = min(limit, len(b.headers))
	for i := range b.dirty {
		h := &b.headers[i].hdr
		h.Namelen = unix.SizeofSockaddrInet6
		h.SetControllen(controlSize)
		h.Flags = 0
		b.iovecs[i].Base = unsafe.SliceData(b.buffers[i])
		b.iovecs[i].SetLen(bufferSize)
	}
	b.dirty = 0
	for {
		n, _, errno := unix.RawSyscall6(unix.SYS_RECVMMSG, uintptr(s.fd), uintptr(unsafe.Pointer(&b.headers[0])),
			uintptr(limit), unix.MSG_DONTWAIT, 0, 0)
		switch errno {
		case 0:
			b.n = int(n)
			b.dirty = b.n
			for i := range b.n {
				b.data[i] = b.buffers[i][:b.headers[i].len]
			}
			return nil
		case unix.EINTR:
		case unix.EAGAIN:
			return nil
		default:
			return errno
		}
	}
}

// Data is the i-th datagram's payload, valid until the batch is used again.
func (b *Batch) Data(i int) []byte { return b.data[i] }

// Peer is who sent the i-th datagram.
func (b *Batch) Peer(i int) Peer { return b.names[i].peer() }

// Truncated tells whether the i-th datagram was longer than any buffer.
func (b *Batch) Truncated(i int) bool { return b.headers[i].hdr.Flags&unix.MSG_TRUNC != 0 }

// Asked is the local address that the i-th datagram was sent to, with the interface it came in by. For an IPv4
// broadcast or group it is the interface's own, since nothing can be answered from those (RFC 1122 section 3.2.1.3).
// The address is invalid where the kernel did not say.
func (b *Batch) Asked(i int) (addr netip.Addr, ifindex uint32) {
	var own netip.Addr
	eachControl(b.controlOf(i), func(level, kind int32, data []byte) {
		switch {
		case level == unix.IPPROTO_IP && kind == unix.IP_PKTINFO && len(data) >= unix.SizeofInet4Pktinfo:
			ifindex = binary.NativeEndian.Uint32(data)
			addr, own = netip.AddrFrom4([4]byte(data[8:12])), netip.AddrFrom4([4]byte(data[4:8])) // ipi_addr, ipi_spec_dst
		case level == unix.IPPROTO_IPV6 && kind == unix.IPV6_PKTINFO && len(data) >= unix.SizeofInet6Pktinfo:
			addr = netip.AddrFrom16([16]byte(data[:16])).Unmap()
			ifindex = binary.NativeEndian.Uint32(data[16:])
		}
	})
	if own.IsValid() && !own.IsUnspecified() {
		addr = own
	}
	return addr, ifindex
}

// Overflow is the socket's count of datagrams lost to its full buffer until the i-th arrived, if known. It
// wraps at 32 bits.
func (b *Batch) Overflow(i int) (total uint32, known bool) {
	eachControl(b.controlOf(i), func(level, kind int32, data []byte) {
		if level == unix.SOL_SOCKET && kind == unix.SO_RXQ_OVFL && len(data) >= 4 {
			total, known = binary.NativeEndian.Uint32(data), true
		}
	})
	return total, known
}

// controlOf is what the kernel said about the i-th datagram.
func (b *Batch) controlOf(i int) []byte {
	return b.control[i][:min(int(b.headers[i].hdr.Controllen), controlSize)]
}

// eachControl walks control messages as CMSG_NXTHDR would.
func eachControl(rest []byte, f func(level, kind int32, data []byte)) {
	for len(rest) >= unix.SizeofCmsghdr {
		h := (*unix.Cmsghdr)(unsafe.Pointer(&rest[0]))
		length := int(h.Len)
		if length < unix.SizeofCmsghdr || length > len(rest) {
			return
		}
		f(h.Level, h.Type, rest[unix.CmsgLen(0):length])
		rest = rest[min(unix.CmsgSpace(length-unix.CmsgLen(0)), len(rest)):]
	}
}

// Take moves datagram i out of from to the end of b and readdresses it: to the peer, and, where source is
// valid, from that local address. The batch must not be full.
func (b *Batch) Take(from *Batch, i int, via *Socket, to Peer, source netip.Addr, ifindex uint32) {
	b.buffers[b.n], from.buffers[i] = from.buffers[i], b.buffers[b.n]
	b.data[b.n] = from.data[i]
	b.address(via, to, source, ifindex)
}

// Next is the empty buffer of the datagram that Push adds. There is none when the batch is full.
func (b *Batch) Next() []byte { return b.buffers[b.n][:0] }

// Push adds a datagram that was written into Next; otherwise it is Take.
func (b *Batch) Push(data []byte, via *Socket, to Peer, source netip.Addr, ifindex uint32) {
	b.data[b.n] = data
	b.address(via, to, source, ifindex)
}

// Tag says to which stream the last datagram belongs: Send keeps the order within a stream, and may change that of
// streams. Untagged datagrams are one stream.
func (b *Batch) Tag(stream uint32) { b.tags[b.n-1] = stream }

func (b *Batch) address(via *Socket, to Peer, source netip.Addr, ifindex uint32) {
	i := b.n
	b.n++
	b.dirty = max(b.dirty, b.n)
	b.tags[i] = 0
	b.names[i].set(via.family, to)
	h := &b.headers[i].hdr
	h.Namelen = b.names[i].len
	h.SetControllen(0)
	if !source.IsValid() {
		return
	}
	control := &b.control[i]
	c := (*unix.Cmsghdr)(unsafe.Pointer(&control[0]))
	data := control[unix.CmsgLen(0):]
	if via.family == unix.AF_INET {
		c.Level, c.Type = unix.IPPROTO_IP, unix.IP_PKTINFO
		c.SetLen(unix.CmsgLen(unix.SizeofInet4Pktinfo))
		addr := source.As4()
		binary.NativeEndian.PutUint32(data, 0)
		copy(data[4:8], addr[:]) // ipi_spec_dst
		clear(data[8:12])
		h.SetControllen(unix.CmsgSpace(unix.SizeofInet4Pktinfo))
		return
	}
	c.Level, c.Type = unix.IPPROTO_IPV6, unix.IPV6_PKTINFO
	c.SetLen(unix.CmsgLen(unix.SizeofInet6Pktinfo))
	addr := source.As16()
	copy(data[:16], addr[:])
	// Only a link-local address needs its interface; any other is routed as usual.
	if !source.IsLinkLocalUnicast() || source.Is4() {
		ifindex = 0
	}
	binary.NativeEndian.PutUint32(data[16:], ifindex)
	h.SetControllen(unix.CmsgSpace(unix.SizeofInet6Pktinfo))
}
