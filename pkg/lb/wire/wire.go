// Package wire sends and hears what a link says of addresses: ARP for IPv4, neighbour discovery for IPv6, by one packet
// socket for each link and family. It needs the capability NET_RAW.
package wire

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/mdlayher/packet"
	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/pkg/frame"
	"github.com/tinkerbell/stack/pkg/lb/probe"
)

// Wires opens ports. Those of one link and family share a packet socket: the kernel runs the filter of each socket for
// each frame. The zero value is ready for use.
type Wires struct {
	mu      sync.Mutex
	sockets map[key]*socket
}

// key tells sockets apart.
type key struct {
	link int
	mac  frame.MAC
	six  bool
}

// socket is a packet socket with a goroutine that reads it until it fails or is closed.
type socket struct {
	key    key
	conn   *packet.Conn
	groups *os.File               // an IPv6 socket that receives nothing, and is the member of groups
	ports  map[netip.Addr][]*Port // guarded by Wires.mu
	done   chan struct{}          // closed when nobody reads any more
	err    error                  // why, once done is closed
}

// Port is a link as far as one address is concerned. Frames are sent from the link's Ethernet address. Its methods may
// be called at the same time; Hear by one goroutine.
type Port struct {
	wires   *Wires
	socket  *socket
	address netip.Addr
	source  netip.Addr // of questions; the zero address is none
	heard   chan probe.Heard

	mu   sync.Mutex // guards sent
	sent []byte
}

const (
	// maxFrame is more than any message of interest has.
	maxFrame = 256
	// backlog is how many messages a port keeps that nobody has heard yet.
	backlog = 32
)

// Open opens a port for an address on a link that speaks Ethernet. The source is an address of the link that this host
// keeps, of the address's family: questions are asked from it. In IPv6 it is link-local.
func (w *Wires) Open(link *net.Interface, source, address netip.Addr) (*Port, error) {
	if len(link.HardwareAddr) != 6 {
		return nil, fmt.Errorf("failed to open packet socket: link %s has no Ethernet address", link.Name)
	}
	address = address.Unmap()
	if address.Is6() && !source.IsLinkLocalUnicast() {
		source = netip.AddrFrom16(frame.LinkLocal(frame.MAC(link.HardwareAddr)))
	}
	if address.Is4() && !source.Is4() {
		source = netip.IPv4Unspecified()
	}
	p := &Port{wires: w, address: address, source: source, heard: make(chan probe.Heard, backlog)}
	if err := w.attach(p, link); err != nil {
		if p.socket != nil {
			_ = p.Close() // the first error is told
		}
		return nil, err
	}
	return p, nil
}

// attach gives a port its link's socket, and has the socket hear of the port's address.
func (w *Wires) attach(p *Port, link *net.Interface) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	k := key{link.Index, frame.MAC(link.HardwareAddr), p.address.Is6()}
	s := w.sockets[k]
	if s == nil {
		var err error
		if s, err = w.listen(link, k, p.address); err != nil {
			return fmt.Errorf("failed to open packet socket on link %s: %w", link.Name, err)
		}
	}
	p.socket = s
	s.ports[p.address] = append(s.ports[p.address], p)
	if err := errors.Join(s.change(), p.group(unix.IPV6_JOIN_GROUP)); err != nil {
		return fmt.Errorf("failed to hear of %s on link %s: %w", p.address, link.Name, err)
	}
	return nil
}

// listen opens a socket. The caller holds mu.
func (w *Wires) listen(link *net.Interface, k key, first netip.Addr) (*socket, error) {
	protocol := frame.EtherTypeIPv6
	if !k.six {
		protocol = frame.EtherTypeARP
	}
	program, err := filter(k.six, []netip.Addr{first})
	if err != nil {
		return nil, err
	}
	s := &socket{key: k, ports: map[netip.Addr][]*Port{}, done: make(chan struct{})}
	if k.six {
		fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return nil, err
		}
		s.groups = os.NewFile(uintptr(fd), "groups")
	}
	if s.conn, err = packet.Listen(link, packet.Raw, protocol, &packet.Config{Filter: program}); err != nil {
		_ = s.groups.Close()
		return nil, err
	}
	if w.sockets == nil {
		w.sockets = map[key]*socket{}
	}
	w.sockets[k] = s
	go w.read(s)
	return s, nil
}

// change has the kernel select the messages of the addresses that have a port. The caller holds Wires.mu.
func (s *socket) change() error {
	program, err := filter(s.key.six, slices.SortedFunc(maps.Keys(s.ports), netip.Addr.Compare))
	if err != nil {
		return err
	}
	return s.conn.SetBPF(program)
}

// group joins or leaves the group to which others send their questions for an IPv6 address: the link's card drops what
// nobody on this host listens to, and so does a switch that goes by reports of MLD, which is why RFC 4862 section 5.4.2
// has a host join before it probes. The caller holds Wires.mu, and the port is one of its socket's.
func (p *Port) group(option int) error {
	if p.address.Is4() {
		return nil
	}
	group, members := frame.SolicitedNode(p.address.As16()), 0
	for address, ports := range p.socket.ports {
		if frame.SolicitedNode(address.As16()) == group {
			members += len(ports)
		}
	}
	if members != 1 {
		return nil
	}
	request := &unix.IPv6Mreq{Multiaddr: group, Interface: uint32(p.socket.key.link)}
	return unix.SetsockoptIPv6Mreq(int(p.socket.groups.Fd()), unix.IPPROTO_IPV6, option, request)
}

// read tells ports what is heard, until the socket fails or is closed.
func (w *Wires) read(s *socket) {
	defer close(s.done)
	for buffer := make([]byte, maxFrame); ; {
		n, _, err := s.conn.ReadFrom(buffer)
		w.mu.Lock()
		if err != nil {
			if s.err = err; w.sockets[s.key] == s { // the next port gets another socket
				delete(w.sockets, s.key)
			}
			w.mu.Unlock()
			return
		}
		about, heard, to, ok := parse(s.key.six, buffer[:n])
		if ok && heard.MAC != s.key.mac {
			for _, p := range s.ports[about] {
				select {
				case p.heard <- p.judge(heard, to, s.key.mac):
				default: // nobody hears
				}
			}
		}
		w.mu.Unlock()
	}
}

// Announce tells all stations on the link that the address is here: by a gratuitous ARP request and reply (RFC 5227
// section 3: some stations heed the one, some the other), or by an unsolicited neighbour advertisement.
func (p *Port) Announce() error {
	mac := p.socket.key.mac
	if p.address.Is6() {
		return p.send(func(b []byte) []byte { return frame.AppendUnsolicited(b, mac, p.address.As16()) })
	}
	vip := p.address.As4()
	request := frame.ARP{Operation: frame.ARPRequest, SenderMAC: mac, SenderIP: vip, TargetIP: vip}
	reply := request
	reply.Operation, reply.TargetMAC = frame.ARPReply, mac
	for _, message := range []frame.ARP{request, reply} {
		err := p.send(func(b []byte) []byte { return frame.AppendARP(b, mac, frame.Broadcast, message) })
		if err != nil {
			return err
		}
	}
	return nil
}

// Ask asks all stations on the link for the address, as any host does that wants to send to it: a station that
// is claiming the address does not take it for another claim.
func (p *Port) Ask() error { return p.ask(p.source) }

// Probe asks all stations on the link for the address, and tells those that are about to claim it that this host is,
// too: an ARP probe (RFC 5227 section 1.1), or a neighbour solicitation from nowhere (RFC 4862 section 5.4.2).
func (p *Port) Probe() error { return p.ask(netip.Addr{}) }

func (p *Port) ask(source netip.Addr) error {
	mac := p.socket.key.mac
	if p.address.Is6() {
		from := [16]byte{}
		if source.Is6() {
			from = source.As16()
		}
		return p.send(func(b []byte) []byte { return frame.AppendSolicitation(b, mac, from, p.address.As16()) })
	}
	question := frame.ARP{Operation: frame.ARPRequest, SenderMAC: mac, TargetIP: p.address.As4()}
	if source.Is4() {
		question.SenderIP = source.As4()
	}
	return p.send(func(b []byte) []byte { return frame.AppendARP(b, mac, frame.Broadcast, question) })
}

func (p *Port) send(build func([]byte) []byte) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sent = build(p.sent[:0])
	_, err := p.socket.conn.WriteTo(p.sent, &packet.Addr{HardwareAddr: net.HardwareAddr(p.sent[:6])})
	if err != nil {
		return fmt.Errorf("failed to send on the link of %s: %w", p.address, err)
	}
	return nil
}

// Hear waits until the deadline for what another station says of the address. The error at the deadline is
// os.ErrDeadlineExceeded.
func (p *Port) Hear(ctx context.Context, deadline time.Time) (probe.Heard, error) {
	select { // what was heard before the deadline, even where it has passed while this process stood still
	case heard := <-p.heard:
		return heard, nil
	default:
	}
	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return probe.Heard{}, ctx.Err()
	case heard := <-p.heard:
		return heard, nil
	case <-p.socket.done:
		return probe.Heard{}, fmt.Errorf("failed to read packet socket: %w", p.socket.err)
	case <-timer.C:
		return probe.Heard{}, os.ErrDeadlineExceeded
	}
}

// Close closes the port, and the socket with its last port; a Hear that waits ends with an error then.
func (p *Port) Close() error {
	s := p.socket
	p.wires.mu.Lock()
	if !slices.Contains(s.ports[p.address], p) { // it is closed
		p.wires.mu.Unlock()
		return nil
	}
	left := p.group(unix.IPV6_LEAVE_GROUP)
	s.ports[p.address] = slices.DeleteFunc(s.ports[p.address], func(other *Port) bool { return other == p })
	if len(s.ports[p.address]) == 0 {
		delete(s.ports, p.address)
	}
	last := len(s.ports) == 0
	if last && p.wires.sockets[s.key] == s {
		delete(p.wires.sockets, s.key)
	} else if !last {
		left = errors.Join(left, s.change())
	}
	p.wires.mu.Unlock()
	if !last {
		return left
	}
	err := s.conn.Close()
	<-s.done
	_ = s.groups.Close() // nil in IPv4
	return err
}
