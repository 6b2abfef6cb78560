package relay

import (
	"encoding/binary"
	"errors"
	"os"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/pkg/frame"
)

// A batch is the most packets that one system call receives or sends.
const batch = 64

// A slot holds one packet: room in front for the headers of a raw frame, the packet as received, and room behind
// for padding and option 82.
const (
	headroom = frame.HeaderLen
	received = 2200 // longer ones are truncated, which is noticed
	slotLen  = 2560
)

// mmsghdr is struct mmsghdr of recvmmsg(2); x/sys has none.
type mmsghdr struct {
	hdr unix.Msghdr
	n   uint32
}

// socket is a non-blocking socket in Go's poller. Reading it costs one system call per batch: the poller is
// edge-triggered, so after a batch that was not full it need not be asked again before it wakes.
type socket struct {
	file *os.File
	conn syscall.RawConn
}

func newSocket(domain, kind int, name string) (*socket, error) {
	fd, err := unix.Socket(domain, kind|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	file := os.NewFile(uintptr(fd), name)
	conn, err := file.SyscallConn()
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return &socket{file: file, conn: conn}, nil
}

func (s *socket) Close() error { return s.file.Close() }

// control runs f with the descriptor.
func (s *socket) control(f func(fd int) error) error {
	var err error
	if controlErr := s.conn.Control(func(fd uintptr) { err = f(int(fd)) }); controlErr != nil {
		return controlErr
	}
	return err
}

// attach gives the socket a filter.
func attach(fd int, program []bpf.RawInstruction) error {
	filters := make([]unix.SockFilter, len(program))
	for i, in := range program {
		filters[i] = unix.SockFilter{Code: in.Op, Jt: in.Jt, Jf: in.Jf, K: in.K}
	}
	prog := unix.SockFprog{Len: uint16(len(filters)), Filter: &filters[0]}
	return os.NewSyscallError("setsockopt SO_ATTACH_FILTER",
		unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &prog))
}

// inbox is the memory of a reader: it receives a batch of packets without allocating.
type inbox struct {
	headers []mmsghdr
	iovs    []unix.Iovec
	names   []unix.RawSockaddrAny
	control []byte
	slots   []byte
	front   int // bytes left free in front of a packet
}

// controlLen is room for one control message of either socket: PACKET_AUXDATA or IP_PKTINFO.
const controlLen = 64

func newInbox(front int) *inbox {
	in := &inbox{
		headers: make([]mmsghdr, batch),
		iovs:    make([]unix.Iovec, batch),
		names:   make([]unix.RawSockaddrAny, batch),
		control: make([]byte, batch*controlLen),
		slots:   make([]byte, batch*slotLen),
		front:   front,
	}
	for i := range in.headers {
		in.iovs[i].Base = &in.slots[i*slotLen+front]
		in.iovs[i].SetLen(received)
		header := &in.headers[i].hdr
		header.Iov = &in.iovs[i]
		header.SetIovlen(1)
		header.Name = (*byte)(unsafe.Pointer(&in.names[i]))
		header.Control = &in.control[i*controlLen]
	}
	return in
}

// receive fills the inbox. It returns EAGAIN when nothing is there.
func (in *inbox) receive(fd uintptr) (int, unix.Errno) {
	for i := range in.headers {
		header := &in.headers[i].hdr
		header.Namelen = unix.SizeofSockaddrAny
		header.SetControllen(controlLen)
		header.Flags = 0
	}
	for {
		// A raw system call: it cannot block, so the scheduler need not hear of it (which would wake its
		// monitor thread for every packet).
		n, _, errno := unix.RawSyscall6(unix.SYS_RECVMMSG, fd, uintptr(unsafe.Pointer(&in.headers[0])), batch,
			unix.MSG_DONTWAIT|unix.MSG_TRUNC, 0, 0)
		if errno != unix.EINTR {
			return int(n), errno
		}
	}
}

// packet is what was received in place i, with capacity up to the end of its slot, and whether it is whole.
func (in *inbox) packet(i int) (b []byte, whole bool) {
	start := i*slotLen + in.front
	n := min(int(in.headers[i].n), received)
	return in.slots[start : start+n : (i+1)*slotLen], in.headers[i].hdr.Flags&unix.MSG_TRUNC == 0
}

// slot is the whole slot of packet i, headroom included.
func (in *inbox) slot(i int) []byte { return in.slots[i*slotLen : (i+1)*slotLen] }

// link is the sender as a packet socket tells it.
func (in *inbox) link(i int) *unix.RawSockaddrLinklayer {
	return (*unix.RawSockaddrLinklayer)(unsafe.Pointer(&in.names[i]))
}

// from is the sender as a UDP socket tells it.
func (in *inbox) from(i int) peer {
	sa := (*unix.RawSockaddrInet4)(unsafe.Pointer(&in.names[i]))
	return peer{ip: sa.Addr, port: ntohs(sa.Port)}
}

// message is the data of the first control message of a level and type, nil where there is none.
func (in *inbox) message(i, level, kind int) []byte {
	control := in.control[i*controlLen:]
	control = control[:min(int(in.headers[i].hdr.Controllen), controlLen)]
	for len(control) >= unix.SizeofCmsghdr {
		header := (*unix.Cmsghdr)(unsafe.Pointer(&control[0]))
		n := int(header.Len)
		if n < unix.SizeofCmsghdr || n > len(control) {
			return nil
		}
		if int(header.Level) == level && int(header.Type) == kind {
			return control[unix.CmsgLen(0):n]
		}
		next := unix.CmsgSpace(n - unix.CmsgLen(0))
		if next > len(control) {
			return nil
		}
		control = control[next:]
	}
	return nil
}

// pump hands every batch that arrives to handle until the socket fails or is closed; its deadline in the past
// ends it with os.ErrDeadlineExceeded.
func (s *socket) pump(in *inbox, handle func(n int)) error {
	var failed error
	err := s.conn.Read(func(fd uintptr) bool {
		for {
			n, errno := in.receive(fd)
			switch {
			case errno == unix.EAGAIN:
				return false
			case errno != 0:
				failed = os.NewSyscallError("recvmmsg", errno)
				return true
			}
			handle(n)
			if n < batch {
				return false
			}
		}
	})
	if failed != nil {
		return failed
	}
	return err
}

// stop ends a pump.
func (s *socket) stop() { _ = s.file.SetReadDeadline(time.Unix(1, 0)) }

// htons turns a number into network order for the kernel's structures.
func htons(v uint16) uint16 {
	var b [2]byte
	binary.BigEndian.PutUint16(b[:], v)
	return binary.NativeEndian.Uint16(b[:])
}

func ntohs(v uint16) uint16 { return htons(v) }
