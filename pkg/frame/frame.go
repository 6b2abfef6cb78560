// Package frame reads and writes UDP datagrams in Ethernet frames, for sockets that carry whole frames.
//
// It knows bytes only: no sockets, no DHCP. [Parse] looks into a received frame without copying, [Header.Put]
// writes the 42 bytes in front of a payload that is already in place, and [Filter] is the kernel's half of the
// selection. [Parse6], [Header6] and [Filter6] are the same for IPv6.
package frame

import (
	"encoding/binary"
	"net"
	"net/netip"
)

// Lengths in bytes of the headers that this package writes: none has options.
const (
	EthernetLen = 14
	IPv4Len     = 20
	UDPLen      = 8
	HeaderLen   = EthernetLen + IPv4Len + UDPLen
)

const (
	etherTypeIPv4 = 0x0800
	protocolUDP   = 17
	flagDF        = 0x4000
	flagMF        = 0x2000
	maskOffset    = 0x1fff
	defaultTTL    = 64
)

// MAC is an Ethernet address.
type MAC [6]byte

// Broadcast is the Ethernet address of every station.
var Broadcast = MAC{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

// String is the address as people write it.
func (m MAC) String() string { return net.HardwareAddr(m[:]).String() }

// IsGroup tells a broadcast or multicast address.
func (m MAC) IsGroup() bool { return m[0]&1 != 0 }

// Fault says what makes a frame unusable. The zero value is a good frame.
type Fault uint8

// The faults that [Parse] finds, in the order in which it looks.
const (
	OK          Fault = iota
	Short             // shorter than its headers, or than the length that they claim
	NotIPv4           // another EtherType or another IP version
	BadHeader         // impossible IPv4 header length, or a wrong header checksum
	NotUDP            // another transport
	Fragment          // part of a larger datagram: a packet socket sees it before reassembly
	BadLength         // a UDP length that does not fit the IPv4 length
	BadChecksum       // a wrong UDP checksum
	NotIPv6           // another EtherType or another IP version, by Parse6 instead of NotIPv4
)

// Datagram is a view of a UDP datagram in a frame. Payload shares the frame's memory.
type Datagram struct {
	SrcMAC, DstMAC MAC
	Src, Dst       netip.AddrPort
	Payload        []byte
}

// Checksum says what the kernel told about a frame's UDP checksum (packet(7), PACKET_AUXDATA).
type Checksum uint8

const (
	// Verify is for a frame from a wire: the sum in it counts.
	Verify Checksum = iota
	// Trust is for a frame whose sum is unfinished (TP_STATUS_CSUMNOTREADY: a local sender left it to a network
	// card that the frame never met) or was verified by the card already.
	Trust
)

// Parse views the UDP datagram in an Ethernet frame. Bytes behind the IPv4 length (Ethernet padding) are ignored.
func Parse(b []byte, sum Checksum) (Datagram, Fault) {
	if len(b) < HeaderLen {
		return Datagram{}, Short
	}
	if binary.BigEndian.Uint16(b[12:]) != etherTypeIPv4 {
		return Datagram{}, NotIPv4
	}
	ip := b[EthernetLen:]
	if ip[0]>>4 != 4 {
		return Datagram{}, NotIPv4
	}
	headerLen := int(ip[0]&0x0f) * 4
	if headerLen < IPv4Len {
		return Datagram{}, BadHeader
	}
	totalLen := int(binary.BigEndian.Uint16(ip[2:]))
	if totalLen > len(ip) || headerLen+UDPLen > totalLen {
		return Datagram{}, Short
	}
	if finish(add(0, ip[:headerLen])) != 0 {
		return Datagram{}, BadHeader
	}
	if ip[9] != protocolUDP {
		return Datagram{}, NotUDP
	}
	if binary.BigEndian.Uint16(ip[6:])&(flagMF|maskOffset) != 0 {
		return Datagram{}, Fragment
	}
	udp := ip[headerLen:totalLen]
	udpLen := int(binary.BigEndian.Uint16(udp[4:]))
	if udpLen < UDPLen || udpLen > len(udp) {
		return Datagram{}, BadLength
	}
	udp = udp[:udpLen]
	// A sum of zero means that the sender made none (RFC 768).
	if sum == Verify && (udp[6] != 0 || udp[7] != 0) {
		if finish(add(pseudo(ip[12:20], udpLen), udp)) != 0 {
			return Datagram{}, BadChecksum
		}
	}
	return Datagram{
		DstMAC:  MAC(b[0:6]),
		SrcMAC:  MAC(b[6:12]),
		Src:     netip.AddrPortFrom(netip.AddrFrom4([4]byte(ip[12:16])), binary.BigEndian.Uint16(udp)),
		Dst:     netip.AddrPortFrom(netip.AddrFrom4([4]byte(ip[16:20])), binary.BigEndian.Uint16(udp[2:])),
		Payload: udp[UDPLen:],
	}, OK
}

// Header is what stands in front of a payload.
type Header struct {
	SrcMAC, DstMAC   MAC
	Src, Dst         [4]byte
	SrcPort, DstPort uint16
}

// Put writes Ethernet, IPv4 and UDP headers into b[:HeaderLen] for the payload that fills the rest of b. The
// caller keeps b below 64 KiB.
func (h *Header) Put(b []byte) {
	copy(b[0:6], h.DstMAC[:])
	copy(b[6:12], h.SrcMAC[:])
	binary.BigEndian.PutUint16(b[12:], etherTypeIPv4)

	ip := b[EthernetLen:]
	ip[0], ip[1] = 0x45, 0
	binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)))
	binary.BigEndian.PutUint16(ip[4:], 0) // an atomic datagram needs no identification (RFC 6864 section 4.1)
	binary.BigEndian.PutUint16(ip[6:], flagDF)
	ip[8], ip[9] = defaultTTL, protocolUDP
	ip[10], ip[11] = 0, 0
	copy(ip[12:16], h.Src[:])
	copy(ip[16:20], h.Dst[:])
	binary.BigEndian.PutUint16(ip[10:], finish(add(0, ip[:IPv4Len])))

	udp := ip[IPv4Len:]
	binary.BigEndian.PutUint16(udp[0:], h.SrcPort)
	binary.BigEndian.PutUint16(udp[2:], h.DstPort)
	binary.BigEndian.PutUint16(udp[4:], uint16(len(udp)))
	udp[6], udp[7] = 0, 0
	sum := finish(add(pseudo(ip[12:20], len(udp)), udp))
	if sum == 0 {
		sum = 0xffff // zero would mean "no checksum" (RFC 768)
	}
	binary.BigEndian.PutUint16(udp[6:], sum)
}
