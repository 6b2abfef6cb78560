package clients

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/dhcpv6"
	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/test/e2e/lab"
	"github.com/tinkerbell/stack/test/e2e/observe"
)

// Seen is a DHCP message on the wire.
type Seen struct {
	Out      bool // sent by the host that is watched
	EthDst   net.HardwareAddr
	Src, Dst netip.AddrPort
	Message  *dhcpv4.DHCPv4
	Message6 *dhcpv6.Message // of DHCPv6, and then there is no Message
}

func (s Seen) String() string {
	way := "in"
	if s.Out {
		way = "out"
	}
	if s.Message6 != nil {
		return fmt.Sprintf("%s %s %s > %s (%s)", way, s.Message6.Type(), s.Src, s.Dst, s.EthDst)
	}
	m := s.Message
	return fmt.Sprintf("%s %s %s > %s (%s) ciaddr %s yiaddr %s giaddr %s", way, m.MessageType(), s.Src, s.Dst, s.EthDst,
		m.ClientIPAddr, m.YourIPAddr, m.GatewayIPAddr)
}

// Unicast tells whether the message was sent to one machine, on both layers.
func (s Seen) Unicast() bool {
	return s.EthDst[0]&1 == 0 && s.Dst.Addr() != netip.AddrFrom4([4]byte{255, 255, 255, 255})
}

// Wire is what a host's eth0 sends and receives of DHCP.
type Wire struct {
	mu    sync.Mutex
	seen  []Seen
	next  int // of Next
	more  chan struct{}
	stop  chan struct{}
	ended chan struct{}
}

// Watch records DHCP on a host's eth0 until Close.
func Watch(l *lab.Lab, role string) (*Wire, error) {
	var fd int
	err := l.Do(role, func() (err error) {
		eth0, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		const everyProtocol = unix.ETH_P_ALL<<8 | unix.ETH_P_ALL>>8 // ETH_P_IP alone shows no outgoing frames
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 100_000}); err != nil {
			return errors.Join(err, unix.Close(fd))
		}
		if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: everyProtocol, Ifindex: eth0.Index}); err != nil {
			return errors.Join(err, unix.Close(fd))
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("failed to watch %s: %w", role, err)
	}
	w := &Wire{more: make(chan struct{}, 1), stop: make(chan struct{}), ended: make(chan struct{})}
	go w.run(fd)
	return w, nil
}

// Close ends the recording.
func (w *Wire) Close() {
	close(w.stop)
	<-w.ended
}

func (w *Wire) run(fd int) {
	defer close(w.ended)
	defer func() { _ = unix.Close(fd) }()
	buffer := make([]byte, 2048)
	for {
		select {
		case <-w.stop:
			return
		default:
		}
		n, from, err := unix.Recvfrom(fd, buffer, 0)
		if err != nil {
			continue // the timeout, or the link is down
		}
		link, ok := from.(*unix.SockaddrLinklayer)
		if !ok {
			continue
		}
		seen, ok := parse(buffer[:n])
		if !ok {
			continue
		}
		seen.Out = link.Pkttype == unix.PACKET_OUTGOING
		w.mu.Lock()
		w.seen = append(w.seen, seen)
		w.mu.Unlock()
		select {
		case w.more <- struct{}{}:
		default:
		}
	}
}

// parse finds a DHCP message in an Ethernet frame.
func parse(frame []byte) (s Seen, ok bool) {
	if p, ok := observe.ParsePacket(frame); ok && p.From.Addr().Is6() {
		return parse6(p)
	}
	if len(frame) < 14+20 || binary.BigEndian.Uint16(frame[12:]) != unix.ETH_P_IP || frame[14]>>4 != 4 {
		return s, false
	}
	ip := frame[14:]
	headerLen, totalLen := int(ip[0]&15)*4, int(binary.BigEndian.Uint16(ip[2:]))
	if ip[9] != unix.IPPROTO_UDP || headerLen < 20 || totalLen > len(ip) || totalLen < headerLen+8 {
		return s, false
	}
	udp := ip[headerLen:totalLen]
	s.Src = netip.AddrPortFrom(netip.AddrFrom4([4]byte(ip[12:16])), binary.BigEndian.Uint16(udp))
	s.Dst = netip.AddrPortFrom(netip.AddrFrom4([4]byte(ip[16:20])), binary.BigEndian.Uint16(udp[2:]))
	if port := s.Dst.Port(); port != 67 && port != 68 {
		return s, false
	}
	message, err := dhcpv4.FromBytes(udp[8:])
	if err != nil {
		return s, false
	}
	s.EthDst = net.HardwareAddr(append([]byte(nil), frame[:6]...))
	s.Message = message
	return s, true
}

// parse6 finds a message of DHCPv6.
func parse6(p observe.Packet) (s Seen, ok bool) {
	if port := p.To.Port(); p.Proto != unix.IPPROTO_UDP ||
		port != dhcpv6.DefaultClientPort && port != dhcpv6.DefaultServerPort {
		return s, false
	}
	message, err := dhcpv6.MessageFromBytes(p.Payload)
	if err != nil {
		return s, false
	}
	return Seen{EthDst: slices.Clone(p.Dst), Src: p.From, Dst: p.To, Message6: message}, true
}

// Next waits for the next message that matches; what came before it is skipped in later calls. The error lists
// what was seen since the last match.
func (w *Wire) Next(ctx context.Context, timeout time.Duration, match func(Seen) bool) (Seen, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	w.mu.Lock()
	first := w.next
	w.mu.Unlock()
	for {
		w.mu.Lock()
		for w.next < len(w.seen) {
			seen := w.seen[w.next]
			w.next++
			if match(seen) {
				w.mu.Unlock()
				return seen, nil
			}
		}
		w.mu.Unlock()
		select {
		case <-w.more:
		case <-ctx.Done():
			w.mu.Lock()
			defer w.mu.Unlock()
			lines := make([]string, 0, len(w.seen)-first)
			for _, seen := range w.seen[first:] {
				lines = append(lines, seen.String())
			}
			return Seen{}, fmt.Errorf("not seen within %s; instead: [%s]", timeout, strings.Join(lines, "; "))
		}
	}
}

// Of matches messages of a kind, by the machine's Ethernet address.
func Of(kind dhcpv4.MessageType, mac net.HardwareAddr) func(Seen) bool {
	return func(s Seen) bool {
		return s.Message != nil && s.Message.MessageType() == kind && s.Message.ClientHWAddr.String() == mac.String()
	}
}

// Of6 matches messages of DHCPv6 of a kind.
func Of6(kind dhcpv6.MessageType) func(Seen) bool {
	return func(s Seen) bool { return s.Message6 != nil && s.Message6.Type() == kind }
}
