package netboot

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// maxFrame is the longest frame that a client takes.
const maxFrame = 2048

// Segment is an interface that many machines share: one packet socket, whose frames go to the client whose hardware
// address the DHCP message names. The kernel leaves all other traffic out.
type Segment struct {
	socket *socket
	done   chan struct{}

	mu      sync.Mutex
	clients map[[6]byte]*member
}

// OpenSegment opens an interface of the calling thread's network namespace.
func OpenSegment(ifname string) (*Segment, error) {
	d, err := OpenDHCP(ifname)
	if err != nil {
		return nil, err
	}
	s := &Segment{socket: d.port.(*socket), done: make(chan struct{}), clients: map[[6]byte]*member{}}
	if err := s.filter(); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	go s.read()
	return s, nil
}

// filter has the kernel pass nothing but UDP to the clients' port. Frames for other hardware addresses than the
// interface's pass, too: a packet socket gets them before the kernel drops them.
func (s *Segment) filter() error {
	program, err := bpf.Assemble([]bpf.Instruction{
		bpf.LoadAbsolute{Off: 12, Size: 2},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.ETH_P_IP, SkipTrue: 6},
		bpf.LoadAbsolute{Off: ethernetLen + 9, Size: 1},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.IPPROTO_UDP, SkipTrue: 4},
		bpf.LoadMemShift{Off: ethernetLen},
		bpf.LoadIndirect{Off: ethernetLen + 2, Size: 2},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: clientPort, SkipTrue: 1},
		bpf.RetConstant{Val: maxFrame},
		bpf.RetConstant{Val: 0},
	})
	if err != nil {
		return fmt.Errorf("failed to assemble filter: %w", err)
	}
	filter := make([]unix.SockFilter, len(program))
	for i, instruction := range program {
		filter[i] = unix.SockFilter{Code: instruction.Op, Jt: instruction.Jt, Jf: instruction.Jf, K: instruction.K}
	}
	raw, err := s.socket.SyscallConn()
	if err != nil {
		return err
	}
	var set error
	err = raw.Control(func(fd uintptr) {
		set = errors.Join(
			unix.SetsockoptSockFprog(int(fd), unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
				&unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}),
			unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 8<<20), // answers to all at once
		)
	})
	if err = errors.Join(err, set); err != nil {
		return fmt.Errorf("failed to set up packet socket: %w", err)
	}
	return nil
}

// Client makes the client of one machine. [DHCP.Close] ends it; the segment stays.
func (s *Segment) Client(mac net.HardwareAddr) *DHCP {
	m := &member{segment: s, frames: make(chan []byte, 16)}
	copy(m.mac[:], mac)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clients[m.mac] = m
	return &DHCP{port: m, mac: mac}
}

// Close closes the socket and waits for its reader.
func (s *Segment) Close() error {
	err := s.socket.Close()
	<-s.done
	return err
}

func (s *Segment) read() {
	defer close(s.done)
	buffer := make([]byte, maxFrame)
	for {
		n, err := s.socket.Read(buffer)
		if errors.Is(err, os.ErrClosed) {
			return
		}
		if err != nil {
			continue // the interface is down for now
		}
		mac, ok := chaddr(buffer[:n])
		if !ok {
			continue
		}
		s.mu.Lock()
		m := s.clients[mac]
		s.mu.Unlock()
		if m == nil {
			continue
		}
		select {
		case m.frames <- bytes.Clone(buffer[:n]):
		default: // the machine does not listen, as a card does whose buffer is full
		}
	}
}

// chaddr is the client's hardware address in a frame with a DHCP reply.
func chaddr(frame []byte) (mac [6]byte, ok bool) {
	const at = 28 // in the message
	if len(frame) < ethernetLen+ipv4Len {
		return mac, false
	}
	message := ethernetLen + int(frame[ethernetLen]&0x0f)*4 + udpLen
	if len(frame) < message+at+6 || binary.BigEndian.Uint16(frame[12:]) != unix.ETH_P_IP ||
		frame[message] != byte(dhcpv4.OpcodeBootReply) {
		return mac, false
	}
	copy(mac[:], frame[message+at:])
	return mac, true
}

// member is one machine's part of a segment.
type member struct {
	segment *Segment
	mac     [6]byte
	frames  chan []byte
}

func (m *member) send(frame []byte) error { return m.segment.socket.send(frame) }

func (m *member) receive(ctx context.Context, buffer []byte, until time.Time) (int, error) {
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	select {
	case frame := <-m.frames:
		return copy(buffer, frame), nil
	case <-timer.C:
	case <-ctx.Done():
	}
	return 0, os.ErrDeadlineExceeded
}

func (m *member) Close() error {
	m.segment.mu.Lock()
	defer m.segment.mu.Unlock()
	if m.segment.clients[m.mac] == m {
		delete(m.segment.clients, m.mac)
	}
	return nil
}
