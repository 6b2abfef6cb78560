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

// ParsePacket reads an Ethernet frame with UDP or TCP over IPv4. Anything else is not ok, and so are fragments.
func ParsePacket(frame []byte) (p Packet, ok bool) {
	const ethernetLen, ipv4Len, udpLen, tcpLen = 14, 20, 8, 20
	if len(frame) < ethernetLen+ipv4Len || binary.BigEndian.Uint16(frame[12:]) != unix.ETH_P_IP {
		return p, false
	}
	ip := frame[ethernetLen:]
	header, total := int(ip[0]&0x0f)*4, int(binary.BigEndian.Uint16(ip[2:]))
	if ip[0]>>4 != 4 || header < ipv4Len || total < header || total > len(ip) ||
		binary.BigEndian.Uint16(ip[6:])&0x3fff != 0 {
		return p, false
	}
	body := ip[header:total]
	p = Packet{Dst: frame[0:6], Src: frame[6:12], Proto: ip[9]}
	if len(body) < udpLen {
		return p, false
	}
	p.From = netip.AddrPortFrom(netip.AddrFrom4([4]byte(ip[12:16])), binary.BigEndian.Uint16(body))
	p.To = netip.AddrPortFrom(netip.AddrFrom4([4]byte(ip[16:20])), binary.BigEndian.Uint16(body[2:]))
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
