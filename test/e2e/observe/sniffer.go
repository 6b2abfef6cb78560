// Package observe watches a lab's networks: it writes what passes to a capture file, and turns the packets of the
// machines' LAN into events. What machines got is thus known from the wire, not from what any program says.
package observe

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/test/e2e/lab"
)

// Interfaces in the capture file.
const (
	LAN  = "lan"  // between the machines and the node: the switch
	Pods = "pods" // between the pod and the services: the node's bridge
)

// The lab's bridges, see its package documentation.
const (
	lanBridge  = "br0"
	podsBridge = "cni0"
)

// Sniffer watches a lab.
type Sniffer struct {
	file    *File
	tracker *Tracker
	sockets []*os.File
	wait    sync.WaitGroup
	mu      sync.Mutex
	faults  []error
}

// Watch begins to watch. Events of the LAN go to emit, from one goroutine.
func Watch(l *lab.Lab, path string, emit func(Event)) (*Sniffer, error) {
	s, err := create(path, emit)
	if err != nil {
		return nil, err
	}
	for _, point := range []struct {
		role, link, name, description string
		packet                        func(time.Time, Packet)
	}{
		{lab.RoleLAN, lanBridge, LAN, "the machines' LAN", s.tracker.Packet},
		{lab.RoleNode, podsBridge, Pods, "the node's bridge to the pods", nil},
	} {
		err := l.Do(point.role, func() error { return s.watch(point.link, point.name, point.description, point.packet) })
		if err != nil {
			return nil, errors.Join(err, s.Close())
		}
	}
	return s, nil
}

// WatchLink begins to watch a link of the calling thread's network namespace, on which machines are.
func WatchLink(link, path string, emit func(Event)) (*Sniffer, error) {
	s, err := create(path, emit)
	if err != nil {
		return nil, err
	}
	if err := s.watch(link, link, "", s.tracker.Packet); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

func create(path string, emit func(Event)) (*Sniffer, error) {
	file, err := Create(path)
	if err != nil {
		return nil, err
	}
	return &Sniffer{file: file, tracker: NewTracker(emit)}, nil
}

func (s *Sniffer) watch(link, name, description string, packet func(time.Time, Packet)) error {
	socket, err := openSocket(link)
	if err != nil {
		return fmt.Errorf("failed to watch %s: %w", name, err)
	}
	s.sockets = append(s.sockets, socket)
	number := s.file.Interface(name, description)
	s.wait.Go(func() { s.read(socket, number, packet) })
	return nil
}

// Close stops watching and ends the file.
func (s *Sniffer) Close() error {
	for _, socket := range s.sockets {
		if raw, err := socket.SyscallConn(); err == nil {
			_ = raw.Control(func(fd uintptr) {
				stats, err := unix.GetsockoptTpacketStats(int(fd), unix.SOL_PACKET, unix.PACKET_STATISTICS)
				if err == nil && stats.Drops > 0 {
					s.fail(fmt.Errorf("%s: missed %d of %d frames", socket.Name(), stats.Drops, stats.Packets))
				}
			})
		}
		s.fail(socket.Close())
	}
	s.wait.Wait()
	s.fail(s.file.Close())
	return errors.Join(s.faults...)
}

func (s *Sniffer) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = append(s.faults, err)
}

func (s *Sniffer) read(socket *os.File, number int, packet func(time.Time, Packet)) {
	buffer := make([]byte, 128<<10)
	for {
		n, err := socket.Read(buffer)
		if errors.Is(err, os.ErrClosed) {
			return
		}
		if errors.Is(err, unix.ENETDOWN) {
			continue // the link goes up again, or the lab goes
		}
		if err != nil {
			s.fail(fmt.Errorf("%s: failed to read: %w", socket.Name(), err))
			return
		}
		at, snap := time.Now(), SnapLen
		p, ok := ParsePacket(buffer[:n])
		if ok && p.isDHCP() {
			snap = n
		}
		s.file.Packet(at, number, buffer[:n], snap)
		if ok && packet != nil {
			packet(at, p)
		}
	}
}

// openSocket opens a packet socket that sees everything a bridge forwards.
func openSocket(link string) (*os.File, error) {
	iface, err := net.InterfaceByName(link)
	if err != nil {
		return nil, err
	}
	const all = unix.ETH_P_ALL<<8 | unix.ETH_P_ALL>>8
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(fd), "capture on "+link)
	err = errors.Join(
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 32<<20),
		unix.SetsockoptPacketMreq(fd, unix.SOL_PACKET, unix.PACKET_ADD_MEMBERSHIP, &unix.PacketMreq{
			Ifindex: int32(iface.Index), Type: unix.PACKET_MR_PROMISC,
		}),
		unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: iface.Index}),
	)
	if err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("failed to open packet socket: %w", err)
	}
	return file, nil
}
