package datagram

import (
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/pkg/mmsg"
)

// A SendBatch collects datagrams that leave through one socket in one system call.
type SendBatch struct {
	socket  *Socket
	out     *mmsg.SendBatch
	gso     bool
	buffers buffers
	queued  [mmsg.Batch]queued
	n       int

	order []int // in which the datagrams leave
	after []int // scratch of arrange
	heads []int // scratch of arrange

	failed int // of one Send
	err    error
	// Close gives the memory back. Batches that exchanged datagrams are used no more when one of them is closed.
	Close func()
}

// queued is a datagram that is to be sent.
type queued struct {
	data   []byte
	path   path
	stream uint32
}

// path is where a datagram goes, and where it comes from.
type path struct {
	to     netip.AddrPort
	source netip.Addr
	link   int
}

// NewSendBatch makes a batch of [mmsg.Batch] datagrams. With gso, datagrams of several streams to one destination cross
// the kernel as one packet, which the interface or its driver segments (generic segmentation offload).
func NewSendBatch(s *Socket, gso bool) *SendBatch {
	b := &SendBatch{socket: s, gso: gso}
	b.out = mmsg.NewSendBatch(gso, func(errno unix.Errno) {
		b.failed++
		b.err = errno
	})
	b.buffers, b.Close = newBuffers()
	return b
}

// Len is the number of datagrams in the batch.
func (b *SendBatch) Len() int { return b.n }

// Full tells that Send is due before another datagram is added.
func (b *SendBatch) Full() bool { return b.n == mmsg.Batch }

// Take moves datagram i out of in to the end of the batch, which must not be full. It goes to the peer and, where
// source is valid, from that local address of an interface.
func (b *SendBatch) Take(in *RecvBatch, i int, to Peer, source netip.Addr, ifindex uint32) {
	data := in.Data(i)
	// data stays in the buffer that b takes.
	b.buffers[b.n] = in.Swap(i, b.buffers[b.n])
	b.Push(data, to, source, ifindex)
}

// Next is the empty buffer of the datagram that Push adds. There is none when the batch is full.
func (b *SendBatch) Next() []byte { return b.buffers[b.n][:0] }

// Push adds a datagram that was written into Next; otherwise it is Take.
func (b *SendBatch) Push(data []byte, to Peer, source netip.Addr, ifindex uint32) {
	link := int(to.Zone)
	if source.Is6() && source.IsLinkLocalUnicast() { // any other source is routed as usual
		link = int(ifindex)
	}
	b.queued[b.n] = queued{data: data, path: path{to: b.socket.addrOf(to), source: source, link: link}}
	b.n++
}

// Tag says to which stream the last datagram belongs: Send keeps the order within a stream, and with gso may change
// that of streams. Untagged datagrams are one stream.
func (b *SendBatch) Tag(stream uint32) { b.queued[b.n-1].stream = stream }

// Send sends every datagram and empties the batch. The kernel's refusal of one does not keep back the others: failed
// counts them, and err is the last reason.
func (b *SendBatch) Send() (failed int, err error) {
	b.arrange()
	for _, i := range b.order {
		q := &b.queued[i]
		b.out.AddUDP(q.data, q.path.to, q.path.source, q.path.link)
	}
	b.n, b.failed, b.err = 0, 0, nil
	b.out.Flush(b.socket.fd)
	return b.failed, b.err
}

// arrange decides on the order. With gso it makes packets of many segments: the longest datagram first, then those of
// its size, then the longest of the shorter ones. It takes the next datagram of a stream only after the one before.
func (b *SendBatch) arrange() {
	b.order = b.order[:0]
	if !b.gso {
		for i := range b.n {
			b.order = append(b.order, i)
		}
		return
	}
	b.heads, b.after = b.heads[:0], b.after[:0]
	for i := range b.n {
		b.after = append(b.after, -1)
		fresh := true
		for k := i - 1; k >= 0; k-- {
			if b.queued[k].stream == b.queued[i].stream {
				b.after[k] = i
				fresh = false
				break
			}
		}
		if fresh {
			b.heads = append(b.heads, i)
		}
	}
	for len(b.order) < b.n {
		first := b.pop(b.longest(-1, bufferSize))
		b.order = append(b.order, first)
		size := len(b.queued[first].data)
		for h := b.longest(first, size); h >= 0; h = b.longest(first, size) {
			next := b.pop(h)
			b.order = append(b.order, next)
			if len(b.queued[next].data) < size {
				break
			}
		}
	}
}

// longest finds the head with the most bytes of those that have no more than limit and, where first is one, take the
// path of first. The earliest wins. It returns -1 when there is none.
func (b *SendBatch) longest(first, limit int) int {
	found, size := -1, -1
	for h, i := range b.heads {
		n := len(b.queued[i].data)
		if n > size && n <= limit && (first < 0 || b.queued[i].path == b.queued[first].path) {
			found, size = h, n
			if first >= 0 && n == limit {
				break
			}
		}
	}
	return found
}

// pop takes a stream's head and puts the next one of the stream into its place.
func (b *SendBatch) pop(h int) int {
	i := b.heads[h]
	if b.after[i] >= 0 {
		b.heads[h] = b.after[i]
	} else {
		b.heads = append(b.heads[:h], b.heads[h+1:]...)
	}
	return i
}
