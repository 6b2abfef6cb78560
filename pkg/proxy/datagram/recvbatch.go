package datagram

import (
	"encoding/binary"

	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/pkg/mmsg"
)

// buffers are the memory of a batch, outside of Go's heap: buffers that no datagram has used yet take no memory there,
// and do not set the pace of garbage collection.
type buffers [][]byte

// bufferSize also holds what IPv6 can carry.
const bufferSize = 65535

func newBuffers() (b buffers, release func()) {
	const rights, kind = unix.PROT_READ | unix.PROT_WRITE, unix.MAP_PRIVATE | unix.MAP_ANONYMOUS
	mapped, err := unix.Mmap(-1, 0, mmsg.Batch*bufferSize, rights, kind)
	memory := mapped
	if err != nil {
		memory = make([]byte, mmsg.Batch*bufferSize)
	}
	for i := range mmsg.Batch {
		b = append(b, memory[i*bufferSize:(i+1)*bufferSize:(i+1)*bufferSize])
	}
	return b, func() {
		if mapped != nil {
			_ = unix.Munmap(mapped)
		}
		mapped = nil
	}
}

// A RecvBatch is the memory that datagrams are received in. They move from there to a [SendBatch] by exchange of
// buffers, not by copy.
type RecvBatch struct {
	*mmsg.RecvBatch
	n int
	// Close gives the memory back. Batches that exchanged datagrams are used no more when one of them is closed.
	Close func()
}

// NewRecvBatch makes a batch of [mmsg.Batch] datagrams.
func NewRecvBatch() *RecvBatch {
	buffers, release := newBuffers()
	return &RecvBatch{RecvBatch: mmsg.NewRecvBatchOf(buffers, 0, bufferSize), Close: release}
}

// Len is the number of datagrams in the batch.
func (b *RecvBatch) Len() int { return b.n }

// Receive replaces the batch's content by at most limit datagrams that wait at the socket. None is no error.
func (b *RecvBatch) Receive(s *Socket, limit int) error {
	for {
		n, errno := b.RecvBatch.Receive(s.fd, limit, unix.MSG_DONTWAIT)
		switch b.n = n; errno {
		case 0, unix.EAGAIN:
			return nil
		case unix.EINTR:
		default:
			return errno
		}
	}
}

// Data is the payload of datagram i, valid until the batch is used again or the datagram is taken out.
func (b *RecvBatch) Data(i int) []byte {
	data, _ := b.Packet(i)
	return data
}

// Truncated tells whether datagram i was longer than any buffer.
func (b *RecvBatch) Truncated(i int) bool {
	_, whole := b.Packet(i)
	return !whole
}

// Peer is the sender of datagram i.
func (b *RecvBatch) Peer(i int) Peer { return peerOf(b.From(i)) }

// Overflow is the socket's count of datagrams lost to its full buffer until datagram i arrived, if known. It wraps at
// 32 bits.
func (b *RecvBatch) Overflow(i int) (total uint32, known bool) {
	data := b.Message(i, unix.SOL_SOCKET, unix.SO_RXQ_OVFL)
	if len(data) < 4 {
		return 0, false
	}
	return binary.NativeEndian.Uint32(data), true
}
