package observe

import (
	"encoding/binary"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Packet is what of a frame matters here. Its slices are parts of the frame.
type Packet struct {
	Src, Dst net.HardwareAddr
	From, To netip.AddrPort
	Proto    uint8 // unix.IPPROTO_UDP or unix.IPPROTO_TCP
	// TCP only.
	Seq, Ack uint32
	Flags    uint8
	Payload  []byte
}

// TCP flags.
const (
	flagFIN = 0x01
	flagSYN = 0x02
	flagRST = 0x04
	flagACK = 0x10
)

const ethernetLen, ipv4Len, ipv6Len, udpLen, tcpLen = 14, 20, 40, 8, 20

// ParsePacket reads an Ethernet frame with UDP or TCP over IPv4 or IPv6. Anything else is not ok, and so are fragments
// and IPv6's extension headers.
func ParsePacket(frame []byte) (p Packet, ok bool) {
	if len(frame) < ethernetLen {
		return p, false
	}
	p = Packet{Dst: frame[0:6], Src: frame[6:12]}
	var source, destination netip.Addr
	var body []byte
	switch ip := frame[ethernetLen:]; binary.BigEndian.Uint16(frame[12:]) {
	case unix.ETH_P_IP:
		if len(ip) < ipv4Len {
			return p, false
		}
		header, total := int(ip[0]&0x0f)*4, int(binary.BigEndian.Uint16(ip[2:]))
		if ip[0]>>4 != 4 || header < ipv4Len || total < header || total > len(ip) ||
			binary.BigEndian.Uint16(ip[6:])&0x3fff != 0 {
			return p, false
		}
		p.Proto, body = ip[9], ip[header:total]
		source, destination = netip.AddrFrom4([4]byte(ip[12:16])), netip.AddrFrom4([4]byte(ip[16:20]))
	case unix.ETH_P_IPV6:
		if len(ip) < ipv6Len {
			return p, false
		}
		total := ipv6Len + int(binary.BigEndian.Uint16(ip[4:]))
		if ip[0]>>4 != 6 || total > len(ip) {
			return p, false
		}
		p.Proto, body = ip[6], ip[ipv6Len:total]
		source, destination = netip.AddrFrom16([16]byte(ip[8:24])), netip.AddrFrom16([16]byte(ip[24:40]))
	default:
		return p, false
	}
	if len(body) < udpLen {
		return p, false
	}
	p.From = netip.AddrPortFrom(source, binary.BigEndian.Uint16(body))
	p.To = netip.AddrPortFrom(destination, binary.BigEndian.Uint16(body[2:]))
	switch p.Proto {
	case unix.IPPROTO_UDP:
		length := int(binary.BigEndian.Uint16(body[4:]))
		if length < udpLen || length > len(body) {
			return p, false
		}
		p.Payload = body[udpLen:length]
	case unix.IPPROTO_TCP:
		if len(body) < tcpLen {
			return p, false
		}
		offset := int(body[12]>>4) * 4
		if offset < tcpLen || offset > len(body) {
			return p, false
		}
		p.Seq, p.Ack = binary.BigEndian.Uint32(body[4:]), binary.BigEndian.Uint32(body[8:])
		p.Flags, p.Payload = body[13], body[offset:]
	default:
		return p, false
	}
	return p, true
}
