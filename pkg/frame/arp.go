package frame

import "encoding/binary"

// Lengths of an ARP message for Ethernet and IPv4 (RFC 826), and of the frame that carries it.
const (
	ARPLen      = 28
	ARPFrameLen = EthernetLen + ARPLen
)

// EtherTypeARP is the type of a frame that carries ARP.
const EtherTypeARP = 0x0806

// The operations of ARP (RFC 826).
const (
	ARPRequest = 1
	ARPReply   = 2
)

// ARP is an ARP message for Ethernet and IPv4.
type ARP struct {
	Operation            uint16
	SenderMAC, TargetMAC MAC
	SenderIP, TargetIP   [4]byte
}

// AppendARP appends a frame with the message to b.
func AppendARP(b []byte, from, to MAC, m ARP) []byte {
	b = append(b, to[:]...)
	b = append(b, from[:]...)
	b = binary.BigEndian.AppendUint16(b, EtherTypeARP)
	b = append(b, 0, 1, 8, 0, 6, 4) // Ethernet and IPv4, with the lengths of their addresses
	b = binary.BigEndian.AppendUint16(b, m.Operation)
	b = append(b, m.SenderMAC[:]...)
	b = append(b, m.SenderIP[:]...)
	b = append(b, m.TargetMAC[:]...)
	return append(b, m.TargetIP[:]...)
}

// ParseARP reads a frame with an ARP message for Ethernet and IPv4; to is the frame's destination. It is false for any
// other frame.
func ParseARP(b []byte) (m ARP, to MAC, ok bool) {
	if len(b) < ARPFrameLen || binary.BigEndian.Uint16(b[12:]) != EtherTypeARP {
		return ARP{}, MAC{}, false
	}
	a := b[EthernetLen:]
	if [6]byte(a) != [6]byte{0, 1, 8, 0, 6, 4} {
		return ARP{}, MAC{}, false
	}
	return ARP{
		Operation: binary.BigEndian.Uint16(a[6:]),
		SenderMAC: MAC(a[8:]), SenderIP: [4]byte(a[14:]),
		TargetMAC: MAC(a[18:]), TargetIP: [4]byte(a[24:]),
	}, MAC(b), true
}
