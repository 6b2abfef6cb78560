// Package link is the wire as stack-doctor sees it: whole frames of one interface, sent from the interface's own
// Ethernet address and from no other, and every frame that comes in. It needs the capability NET_RAW.
package link

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/pkg/frame"
)

// Fault is why an interface cannot be used.
type Fault uint8

// The faults.
const (
	Missing   Fault = iota + 1 // there is no such interface
	Down                       // it is not up
	NoCarrier                  // it is up, and nothing is plugged in
	Port                       // it belongs to a bridge or a bond
	Alien                      // it does not speak Ethernet
	NoRights                   // the process may not open it
)

// Error is a fault with its words.
type Error struct {
	Fault Fault
	err   error
}

func (e *Error) Error() string { return e.err.Error() }

func fault(f Fault, format string, args ...any) *Error { return &Error{f, fmt.Errorf(format, args...)} }

// Received is a frame that came in. Its memory is reused.
type Received struct {
	Frame []byte
	// Sum tells whether the checksum in the frame counts: a sender on this host may have left it unfinished.
	Sum frame.Checksum
	// VLAN is the tag that the network card or the kernel took off; 0: none.
	VLAN uint16
}

// Link is an open interface.
type Link struct {
	Name string
	MAC  frame.MAC
	MTU  int

	file  *os.File
	index int
	sent  atomic.Int64
	done  chan struct{}

	mu   sync.Mutex
	taps []*func(Received)
}

// Open opens an interface of the calling thread's network namespace and begins to read.
func Open(name string) (*Link, error) {
	found, err := netlink.LinkByName(name)
	if err != nil {
		return nil, fault(Missing, "failed to find interface %s: %w", name, err)
	}
	attrs := found.Attrs()
	if attrs.MasterIndex != 0 && found.Type() != "macvlan" {
		master := fmt.Sprint("interface ", attrs.MasterIndex)
		if m, err := netlink.LinkByIndex(attrs.MasterIndex); err == nil {
			master = m.Type() + " " + m.Attrs().Name
		}
		return nil, fault(Port, "%s is a port of %s, which takes its frames", name, master)
	}
	switch {
	case len(attrs.HardwareAddr) != 6 || attrs.Flags&net.FlagLoopback != 0:
		return nil, fault(Alien, "%s (%s) does not speak Ethernet", name, found.Type())
	case attrs.Flags&net.FlagUp == 0:
		return nil, fault(Down, "%s is down", name)
	case attrs.RawFlags&unix.IFF_LOWER_UP == 0:
		return nil, fault(NoCarrier, "%s has no carrier", name)
	}
	l := &Link{
		Name: name, MAC: frame.MAC(attrs.HardwareAddr), MTU: attrs.MTU, index: attrs.Index,
		done: make(chan struct{}),
	}
	if err := l.listen(); errors.Is(err, os.ErrPermission) {
		return nil, fault(NoRights, "failed to open a packet socket on %s: %w", name, err)
	} else if err != nil {
		return nil, fmt.Errorf("failed to open a packet socket on %s: %w", name, err)
	}
	go l.read()
	return l, nil
}

const (
	everyProtocol = unix.ETH_P_ALL<<8 | unix.ETH_P_ALL>>8
	// buffered is the most that the kernel keeps for the reader, in bytes: a flood is lost beyond it.
	buffered = 4 << 20
	// maxFrame is more than any frame has: on one host, a sender's kernel may hand over many segments as one.
	maxFrame = 1 << 17
)

func (l *Link) listen() error {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, buffered)
	err = errors.Join(
		unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_AUXDATA, 1),
		unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: everyProtocol, Ifindex: l.index}))
	if err != nil {
		return errors.Join(err, unix.Close(fd))
	}
	l.file = os.NewFile(uintptr(fd), "packets of "+l.Name)
	return nil
}

// Close ends everything that the link does, and waits for it.
func (l *Link) Close() error {
	err := l.file.Close()
	<-l.done
	return err
}

// Sent is how many frames were sent.
func (l *Link) Sent() int { return int(l.sent.Load()) }

// Send sends a frame. Its source is the link's own address, or it is a mistake of the program.
func (l *Link) Send(b []byte) error {
	if len(b) < frame.EthernetLen || frame.MAC(b[6:12]) != l.MAC {
		return errors.New("failed to send frame: it is not from this interface")
	}
	raw, err := l.file.SyscallConn()
	if err != nil {
		return err
	}
	to := &unix.SockaddrLinklayer{Ifindex: l.index, Halen: 6}
	copy(to.Addr[:], b[:6])
	var sent error
	err = raw.Write(func(fd uintptr) bool {
		sent = unix.Sendto(int(fd), b, 0, to)
		return !errors.Is(sent, unix.EAGAIN)
	})
	if err = errors.Join(err, sent); err != nil {
		return fmt.Errorf("failed to send frame on %s: %w", l.Name, err)
	}
	l.sent.Add(1)
	return nil
}

// Tap has a function called with every frame that comes in, until the function that it returns is called. It is not
// called at the same time by two, and must not wait; the first to come is called first.
func (l *Link) Tap(hear func(Received)) (end func()) {
	key := &hear
	l.mu.Lock()
	defer l.mu.Unlock()
	l.taps = append(l.taps, key)
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.taps = slices.DeleteFunc(l.taps, func(other *func(Received)) bool { return other == key })
	}
}

// read tells the taps until the link is closed, or its interface goes away.
func (l *Link) read() {
	defer close(l.done)
	buffer, oob := make([]byte, maxFrame), make([]byte, 128)
	raw, err := l.file.SyscallConn()
	if err != nil {
		return
	}
	for {
		var n, oobn int
		var from unix.Sockaddr
		var received error
		err := raw.Read(func(fd uintptr) bool {
			n, oobn, _, from, received = unix.Recvmsg(int(fd), buffer, oob, 0)
			return !errors.Is(received, unix.EAGAIN)
		})
		if err != nil {
			return // closed
		}
		if received != nil || n < frame.EthernetLen {
			continue // such as that the interface went down for a while
		}
		if at, ok := from.(*unix.SockaddrLinklayer); ok && at.Pkttype == unix.PACKET_OUTGOING {
			continue
		}
		in := Received{Frame: buffer[:n]}
		in.Sum, in.VLAN = auxiliary(oob[:oobn])
		l.mu.Lock()
		for _, hear := range l.taps {
			(*hear)(in)
		}
		l.mu.Unlock()
	}
}

// Of struct tpacket_auxdata (packet(7)).
const (
	auxLen  = 20
	auxTCI  = 16
	sumLeft = unix.TP_STATUS_CSUMNOTREADY | unix.TP_STATUS_CSUM_VALID
)

// auxiliary reads what the kernel says beside a frame.
func auxiliary(oob []byte) (sum frame.Checksum, vlan uint16) {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return frame.Verify, 0
	}
	for _, m := range messages {
		if m.Header.Level != unix.SOL_PACKET || m.Header.Type != unix.PACKET_AUXDATA || len(m.Data) < auxLen {
			continue
		}
		status := binary.NativeEndian.Uint32(m.Data)
		if status&sumLeft != 0 {
			sum = frame.Trust
		}
		if status&unix.TP_STATUS_VLAN_VALID != 0 {
			vlan = binary.NativeEndian.Uint16(m.Data[auxTCI:]) & 0xfff
		}
	}
	return sum, vlan
}
