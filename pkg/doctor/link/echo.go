package link

import (
	"context"
	"encoding/binary"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/tinkerbell/stack/pkg/frame"
)

// Echoes is what came of echo requests.
type Echoes struct {
	// Passed are the sizes of the packets that were answered by packets of the same size, ascending.
	Passed []int
	// Told is the largest packet that a router lets pass, as it says itself; 0: none said anything.
	Told int
}

const (
	protocolICMP = 1
	echoReply    = 0
	unreachable  = 3
	echoRequest  = 8
	icmpLen      = 8
	// Codes of unreachable (RFC 792; RFC 1191 section 4).
	portUnreachable     = 3
	fragmentationNeeded = 4
	dontFragment        = 0x4000
)

// Echo sends packets of some sizes in bytes that nobody may cut in two (RFC 1191), to an address by way of a station,
// and
// waits for the answers. The source is an address that this station answers for; see [Link.Station].
func (l *Link) Echo(
	ctx context.Context, from, to netip.Addr, via frame.MAC, sizes []int, wait time.Duration,
) (heard Echoes) {
	id := uint16(l.index)<<8 | 0x5d
	var mu sync.Mutex
	all := make(chan struct{}, 1)
	defer l.Tap(func(in Received) {
		kind, code, body, ok := parseICMP(in, to, from)
		if !ok {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		switch {
		case kind == echoReply && binary.BigEndian.Uint16(body[4:]) == id:
			size := frame.IPv4Len + len(body)
			if slices.Contains(sizes, size) && !slices.Contains(heard.Passed, size) {
				heard.Passed = append(heard.Passed, size)
			}
			if len(heard.Passed) == len(sizes) {
				select {
				case all <- struct{}{}:
				default:
				}
			}
		case kind == unreachable && code == fragmentationNeeded:
			heard.Told = int(binary.BigEndian.Uint16(body[6:]))
		}
	})()
	for i, size := range sizes {
		_ = l.Send(l.echo(from, to, via, size, id, uint16(i)))
	}
	select {
	case <-ctx.Done():
	case <-all:
	case <-time.After(wait):
	}
	mu.Lock()
	defer mu.Unlock()
	slices.Sort(heard.Passed)
	return Echoes{slices.Clone(heard.Passed), heard.Told}
}

// Refused calls a function when a host says that nothing listens on a port to which a datagram of ours was sent, until
// end is called. The function must not wait.
func (l *Link) Refused(ours netip.Addr, to netip.AddrPort, refused func()) (end func()) {
	return l.Tap(func(in Received) {
		kind, code, body, ok := parseICMP(in, to.Addr(), ours)
		if !ok || kind != unreachable || code != portUnreachable {
			return
		}
		const destinationPort = 2
		at := icmpLen + int(body[icmpLen]&15)*4 + destinationPort
		if len(body) >= at+2 && binary.BigEndian.Uint16(body[at:]) == to.Port() {
			refused()
		}
	})
}

// echo is a frame with an echo request.
func (l *Link) echo(from, to netip.Addr, via frame.MAC, size int, id, sequence uint16) []byte {
	b := make([]byte, frame.EthernetLen+size)
	copy(b, via[:])
	copy(b[6:], l.MAC[:])
	b[12], b[13] = 0x08, 0x00
	ip := b[frame.EthernetLen:]
	ip[0], ip[8], ip[9] = 0x45, 64, protocolICMP
	binary.BigEndian.PutUint16(ip[2:], uint16(size))
	binary.BigEndian.PutUint16(ip[6:], dontFragment)
	source, destination := from.As4(), to.As4()
	copy(ip[12:], source[:])
	copy(ip[16:], destination[:])
	binary.BigEndian.PutUint16(ip[10:], ^sum(ip[:frame.IPv4Len]))
	icmp := ip[frame.IPv4Len:]
	icmp[0] = echoRequest
	binary.BigEndian.PutUint16(icmp[4:], id)
	binary.BigEndian.PutUint16(icmp[6:], sequence)
	binary.BigEndian.PutUint16(icmp[2:], ^sum(icmp))
	return b
}

// parseICMP finds a message for an address of ours: one from a peer, or about a packet to it.
func parseICMP(in Received, peer, ours netip.Addr) (kind, code byte, body []byte, ok bool) {
	b := in.Frame
	if len(b) < frame.EthernetLen+frame.IPv4Len+icmpLen || in.VLAN != 0 || b[12] != 0x08 || b[13] != 0 {
		return 0, 0, nil, false
	}
	ip := b[frame.EthernetLen:]
	header, total := int(ip[0]&15)*4, int(binary.BigEndian.Uint16(ip[2:]))
	if ip[0]>>4 != 4 || ip[9] != protocolICMP || header < frame.IPv4Len || total > len(ip) || total < header+icmpLen ||
		netip.AddrFrom4([4]byte(ip[16:20])) != ours {
		return 0, 0, nil, false
	}
	body = ip[header:total]
	if body[0] == unreachable {
		const inner = icmpLen + 16
		about := len(body) >= inner+4 && netip.AddrFrom4([4]byte(body[inner:inner+4])) == peer
		return body[0], body[1], body, about
	}
	return body[0], body[1], body, netip.AddrFrom4([4]byte(ip[12:16])) == peer
}

// sum is the ones' complement sum of RFC 1071, folded.
func sum(b []byte) uint16 {
	var total uint32
	for ; len(b) >= 2; b = b[2:] {
		total += uint32(binary.BigEndian.Uint16(b))
	}
	if len(b) == 1 {
		total += uint32(b[0]) << 8
	}
	for total > 0xffff {
		total = total>>16 + total&0xffff
	}
	return uint16(total)
}
