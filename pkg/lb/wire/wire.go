// Package wire sends and hears what a link says of one address: ARP for IPv4, neighbour discovery for IPv6, by a packet
// socket. It needs the capability NET_RAW.
package wire

import (
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/mdlayher/packet"
	"golang.org/x/net/bpf"

	"github.com/tinkerbell/stack/pkg/frame"
)

// Port is a link as far as one address is concerned. Frames are sent from the link's Ethernet address. Send methods may
// be called at the same time as Answer, which one goroutine calls.
type Port struct {
	conn    *packet.Conn
	mac     frame.MAC
	address netip.Addr
	buffer  []byte

	mu   sync.Mutex // guards sent
	sent []byte
}

// maxFrame is more than any message of interest has.
const maxFrame = 256

// Open opens a port for an address on a link that speaks Ethernet.
func Open(link *net.Interface, address netip.Addr) (*Port, error) {
	if len(link.HardwareAddr) != 6 {
		return nil, fmt.Errorf("failed to open packet socket: link %s has no Ethernet address", link.Name)
	}
	address = address.Unmap()
	protocol, filter := frame.EtherTypeIPv6, filterAdvertisements()
	if address.Is4() {
		protocol, filter = frame.EtherTypeARP, filterARP(address)
	}
	program, err := bpf.Assemble(filter)
	if err != nil {
		return nil, fmt.Errorf("failed to assemble packet filter: %w", err)
	}
	conn, err := packet.Listen(link, packet.Raw, protocol, &packet.Config{Filter: program})
	if err != nil {
		return nil, fmt.Errorf("failed to open packet socket on link %s: %w", link.Name, err)
	}
	return &Port{
		conn: conn, mac: frame.MAC(link.HardwareAddr), address: address, buffer: make([]byte, maxFrame),
	}, nil
}

// filterARP selects ARP replies from the address.
func filterARP(address netip.Addr) []bpf.Instruction {
	four := address.As4()
	sender := uint32(four[0])<<24 | uint32(four[1])<<16 | uint32(four[2])<<8 | uint32(four[3])
	return []bpf.Instruction{
		bpf.LoadAbsolute{Off: frame.EthernetLen + 6, Size: 2},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: frame.ARPReply, SkipTrue: 3},
		bpf.LoadAbsolute{Off: frame.EthernetLen + 14, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: sender, SkipTrue: 1},
		bpf.RetConstant{Val: maxFrame},
		bpf.RetConstant{Val: 0},
	}
}

// filterAdvertisements selects neighbour advertisements.
func filterAdvertisements() []bpf.Instruction {
	const icmpv6, advertisement = 58, 136
	return []bpf.Instruction{
		bpf.LoadAbsolute{Off: frame.EthernetLen + 6, Size: 1},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: icmpv6, SkipTrue: 3},
		bpf.LoadAbsolute{Off: frame.EthernetLen + frame.IPv6Len, Size: 1},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: advertisement, SkipTrue: 1},
		bpf.RetConstant{Val: maxFrame},
		bpf.RetConstant{Val: 0},
	}
}

// MAC is the link's Ethernet address, from which the port sends.
func (p *Port) MAC() frame.MAC { return p.mac }

// Announce tells all stations on the link that the address is here: by a gratuitous ARP request and reply (RFC 5227
// section 3: some stations heed the one, some the other), or by an unsolicited neighbour advertisement.
func (p *Port) Announce() error {
	if p.address.Is6() {
		target := p.address.As16()
		return p.send(func(b []byte) []byte { return frame.AppendUnsolicited(b, p.mac, target) })
	}
	vip := p.address.As4()
	request := frame.ARP{Operation: frame.ARPRequest, SenderMAC: p.mac, SenderIP: vip, TargetIP: vip}
	reply := request
	reply.Operation, reply.TargetMAC = frame.ARPReply, p.mac
	for _, message := range []frame.ARP{request, reply} {
		err := p.send(func(b []byte) []byte { return frame.AppendARP(b, p.mac, frame.Broadcast, message) })
		if err != nil {
			return err
		}
	}
	return nil
}

// Ask asks all stations on the link for the address without saying that it is here: by an ARP probe (RFC 5227 section
// 1.1), or by a neighbour solicitation from the link's link-local address.
func (p *Port) Ask() error {
	if p.address.Is6() {
		target := p.address.As16()
		source := frame.LinkLocal(p.mac)
		return p.send(func(b []byte) []byte { return frame.AppendSolicitation(b, p.mac, source, target) })
	}
	probe := frame.ARP{Operation: frame.ARPRequest, SenderMAC: p.mac, TargetIP: p.address.As4()}
	return p.send(func(b []byte) []byte { return frame.AppendARP(b, p.mac, frame.Broadcast, probe) })
}

func (p *Port) send(build func([]byte) []byte) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sent = build(p.sent[:0])
	_, err := p.conn.WriteTo(p.sent, &packet.Addr{HardwareAddr: net.HardwareAddr(p.sent[:6])})
	if err != nil {
		return fmt.Errorf("failed to send on the link of %s: %w", p.address, err)
	}
	return nil
}

// Answer waits until the deadline for a station that answers a question of this port, and returns its Ethernet address.
// What a station announces to all is no answer, since it says nothing of the time at which the question was heard: two
// answers to one question mean two owners at one time. The error at the deadline is os.ErrDeadlineExceeded.
func (p *Port) Answer(deadline time.Time) (frame.MAC, error) {
	if err := p.conn.SetReadDeadline(deadline); err != nil {
		return frame.MAC{}, err
	}
	for {
		n, _, err := p.conn.ReadFrom(p.buffer)
		if err != nil {
			return frame.MAC{}, err
		}
		if owner, ok := p.read(p.buffer[:n]); ok {
			return owner, nil
		}
	}
}

func (p *Port) read(b []byte) (owner frame.MAC, ok bool) {
	if p.address.Is6() {
		a, to, ok := frame.ParseNeighbourAdvertisement(b)
		return a.MAC, ok && to == p.mac && a.Solicited && a.Target == p.address.As16() && a.MAC != p.mac
	}
	m, to, ok := frame.ParseARP(b)
	return m.SenderMAC, ok && to == p.mac && m.Operation == frame.ARPReply && m.SenderIP == p.address.As4() &&
		m.SenderMAC != p.mac
}

// Close closes the port; an Answer that waits ends with an error.
func (p *Port) Close() error { return p.conn.Close() }
