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

// Echo sends packets of some sizes in bytes that nobody may cut in two (RFC 1191), to an address
// by way of a station, and waits for the answers. The source is an address that this station answers for; see
// [Link.Station].
func (l *Link) Echo(
	ctx context.Context, from, to netip.Addr, via frame.MAC, sizes []int, wait time.Duration,
) (heard Echoes) {
	id := uint16(l.index)<<8 | 0x5d
	var mu sync.Mutex
	all := make(chan struct{}, 1)
	defer l.Tap(func(in Received) {
		r, ok := parseReport(in, from)
		if !ok || r.peer != to {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		switch {
		case r.echoed > 0 && r.id == id:
			if slices.Contains(sizes, r.echoed) && !slices.Contains(heard.Passed, r.echoed) {
				heard.Passed = append(heard.Passed, r.echoed)
			}
			if len(heard.Passed) == len(sizes) {
				select {
				case all <- struct{}{}:
				default:
				}
			}
		case r.told > 0:
			heard.Told = r.told
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
		if r, ok := parseReport(in, ours); ok && r.why == 0 && r.closed != 0 && netip.AddrPortFrom(r.peer, r.closed) == to {
			refused()
		}
	})
}

// Returned calls a function when a router or host says that a packet of ours to a peer does not arrive, and why, until
// end is called. The peer has port 0 where no packet to its address arrives. The function must not wait.
func (l *Link) Returned(ours netip.Addr, returned func(peer netip.AddrPort, by netip.Addr, why Reason)) (end func()) {
	return l.Tap(func(in Received) {
		if r, ok := parseReport(in, ours); ok && r.why != 0 {
			returned(netip.AddrPortFrom(r.peer, r.closed), r.by, r.why)
		}
	})
}

// Reason is why a packet does not arrive.
type Reason uint8

// The reasons.
const (
	Looped      Reason = iota + 1 // it passed too many routers
	Unreachable                   // there is no route to the address, or nobody there has it
	Prohibited                    // a firewall or an access list forbids it
	Rejected                      // a firewall does, in the words for a closed port of UDP, which TCP has not
)

const (
	etherTypeIPv4 = 0x0800
	protocolICMP  = 1
	protocolTCP   = 6
	icmpLen       = 8
	// Types of ICMP, and codes of unreachable (RFC 792; RFC 1191 section 4).
	echoReply           = 0
	unreachable         = 3
	echoRequest         = 8
	timeExceeded        = 11
	portUnreachable     = 3
	fragmentationNeeded = 4
	dontFragment        = 0x4000
)

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

// report is a message of ICMP for an address of ours.
type report struct {
	by     netip.Addr // that sent it
	peer   netip.Addr // that sent an echo reply, or that the packet was for that it is about
	echoed int        // bytes of the packet with an echo reply; 0: it is none
	id     uint16
	told   int    // bytes that a packet may have; 0: not said
	closed uint16 // port on which nobody listens, of TCP one that is rejected; 0: not said
	why    Reason // that a packet does not arrive; 0: not said
}

// parseReport reads a message for an address of ours.
func parseReport(in Received, ours netip.Addr) (r report, ok bool) {
	if len(in.Frame) < frame.EthernetLen+frame.IPv4Len+icmpLen || in.VLAN != 0 {
		return r, false
	}
	if binary.BigEndian.Uint16(in.Frame[12:]) != etherTypeIPv4 {
		return r, false
	}
	ip := in.Frame[frame.EthernetLen:]
	header, total := int(ip[0]&15)*4, int(binary.BigEndian.Uint16(ip[2:]))
	if ip[0]>>4 != 4 || ip[9] != protocolICMP || header < frame.IPv4Len || total > len(ip) || total < header+icmpLen ||
		netip.AddrFrom4([4]byte(ip[16:20])) != ours {
		return r, false
	}
	body := ip[header:total]
	r.by = netip.AddrFrom4([4]byte(ip[12:16]))
	if body[0] == echoReply {
		r.peer, r.echoed, r.id = r.by, frame.IPv4Len+len(body), binary.BigEndian.Uint16(body[4:])
		return r, true
	}
	const inner, innerTo = icmpLen, icmpLen + 16
	if len(body) < innerTo+4 {
		return r, false
	}
	r.peer, r.why = netip.AddrFrom4([4]byte(body[innerTo:innerTo+4])), reasons[[2]byte(body)]
	switch {
	case r.why != 0:
	case body[0] == unreachable && body[1] == fragmentationNeeded:
		r.told = int(binary.BigEndian.Uint16(body[6:]))
	case body[0] == unreachable && body[1] == portUnreachable:
		if at := inner + int(body[inner]&15)*4 + portOffset; len(body) >= at+2 {
			r.refuse(body[inner+9], body[at:])
		}
	default:
		return r, false
	}
	return r, true
}

// portOffset is where the headers of UDP and TCP have the destination's port.
const portOffset = 2

// reasons are the messages that say that a packet does not arrive, by type and code; RFC 792, RFC 1812 section 5.2.7.1.
var reasons = map[[2]byte]Reason{
	{timeExceeded, 0}: Looped,
	{unreachable, 0}:  Unreachable, {unreachable, 1}: Unreachable, // network, host
	{unreachable, 6}: Unreachable, {unreachable, 7}: Unreachable, // neither is known
	{unreachable, 9}: Prohibited, {unreachable, 10}: Prohibited, {unreachable, 13}: Prohibited,
}

// refuse reads "port unreachable" for a packet of a protocol. Hosts say it of UDP alone: TCP has a reset for that.
func (r *report) refuse(protocol byte, port []byte) {
	if r.closed = binary.BigEndian.Uint16(port); protocol == protocolTCP {
		r.why = Rejected
	}
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
