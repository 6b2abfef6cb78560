package frame

import "encoding/binary"

// Neighbour discovery (RFC 4861 sections 4.3 and 4.4).
const (
	neighbourSolicitation  = 135
	neighbourAdvertisement = 136
	// neighbourLen is the length of either message: header, target, and the option with an Ethernet address.
	neighbourLen     = 8 + 16 + 8
	optionSourceMAC  = 1
	optionTargetMAC  = 2
	flagSolicited    = 0x40
	flagOverride     = 0x20
	optionLen        = 1 // in units of eight bytes
	neighbourAllLen  = EthernetLen + IPv6Len + neighbourLen
	neighbourLeast   = EthernetLen + IPv6Len + 8 + 16
	neighbourOptions = 24
)

// EtherTypeIPv6 is the type of a frame that carries IPv6.
const EtherTypeIPv6 = etherTypeIPv6

var (
	allNodes        = [16]byte{0xff, 2, 15: 1}
	solicitedPrefix = [13]byte{0xff, 2, 11: 1, 12: 0xff}
)

// SolicitedNode is the group that the owner of an address listens to (RFC 4291 section 2.7.1).
func SolicitedNode(address [16]byte) (group [16]byte) {
	copy(group[:], solicitedPrefix[:])
	copy(group[13:], address[13:])
	return group
}

// AppendSolicitation appends a frame that asks for the Ethernet address of target (RFC 4861 section 4.3). The answer
// comes to from alone, since the frame says which Ethernet address source has. From nowhere, the zero source, it says
// that this station is about to claim target, and the answer comes to all (RFC 4862 section 5.4).
func AppendSolicitation(b []byte, from MAC, source, target [16]byte) []byte {
	group := SolicitedNode(target)
	h := Header6{SrcMAC: from, DstMAC: GroupMAC(group), Src: source, Dst: group}
	if source == ([16]byte{}) {
		return appendNeighbour(b, &h, neighbourSolicitation, 0, target, 0)
	}
	return appendNeighbour(b, &h, neighbourSolicitation, 0, target, optionSourceMAC)
}

// AppendUnsolicited appends a frame that tells all stations that target has the Ethernet address from (RFC 4861
// section 7.2.6): an advertisement that overrides what they remember.
func AppendUnsolicited(b []byte, from MAC, target [16]byte) []byte {
	h := Header6{SrcMAC: from, DstMAC: GroupMAC(allNodes), Src: target, Dst: allNodes}
	return appendNeighbour(b, &h, neighbourAdvertisement, flagOverride, target, optionTargetMAC)
}

func appendNeighbour(b []byte, h *Header6, kind, flags byte, target [16]byte, option byte) []byte {
	start, length := len(b), neighbourAllLen
	if option == 0 {
		length = neighbourLeast
	}
	b = append(b, make([]byte, length)...)
	f := b[start:]
	putIPv6(f, h, protocolICMPv6)
	ip := f[EthernetLen:]
	icmp := ip[IPv6Len:]
	icmp[0], icmp[4] = kind, flags
	copy(icmp[8:], target[:])
	if option != 0 {
		icmp[neighbourOptions], icmp[neighbourOptions+1] = option, optionLen
		copy(icmp[neighbourOptions+2:], h.SrcMAC[:])
	}
	binary.BigEndian.PutUint16(icmp[2:], finish(add(pseudo6(ip[8:40], len(icmp), protocolICMPv6), icmp)))
	return b
}

// NeighbourAdvertisement is what a station says of an address that it has.
type NeighbourAdvertisement struct {
	Target    [16]byte
	MAC       MAC // of the option, or of the frame if it has none
	Solicited bool
}

// ParseNeighbourAdvertisement reads a neighbour advertisement; to is the frame's destination. It is false for any other
// frame, and for one that is damaged or did not come from the same link, by its hop limit (RFC 4861 section 7.1.2).
func ParseNeighbourAdvertisement(b []byte) (a NeighbourAdvertisement, to MAC, ok bool) {
	icmp, from, ok := neighbour(b, neighbourAdvertisement)
	if !ok {
		return a, to, false
	}
	a = NeighbourAdvertisement{Target: [16]byte(icmp[8:]), MAC: from, Solicited: icmp[4]&flagSolicited != 0}
	for options := icmp[neighbourOptions:]; len(options) >= 8; {
		n := int(options[1]) * 8
		if n == 0 || n > len(options) {
			return a, to, false
		}
		if options[0] == optionTargetMAC && n == 8 {
			a.MAC = MAC(options[2:])
		}
		options = options[n:]
	}
	return a, MAC(b), true
}

// ParseProbe6 reads a neighbour solicitation from nowhere: the station mac is about to claim target (RFC 4862 section
// 5.4.3). It is false for any other frame.
func ParseProbe6(b []byte) (target [16]byte, mac MAC, ok bool) {
	icmp, mac, ok := neighbour(b, neighbourSolicitation)
	if !ok || [16]byte(b[EthernetLen+8:]) != [16]byte{} {
		return target, mac, false
	}
	return [16]byte(icmp[8:]), mac, true
}

// neighbour finds the ICMPv6 message of a kind in a frame, and where the frame is from. It is false for any other
// frame, and for one that is damaged or did not come from the same link, by its hop limit (RFC 4861 section 7.1).
func neighbour(b []byte, kind byte) (icmp []byte, from MAC, ok bool) {
	if len(b) < neighbourLeast || binary.BigEndian.Uint16(b[12:]) != etherTypeIPv6 {
		return nil, from, false
	}
	ip := b[EthernetLen:]
	length := int(binary.BigEndian.Uint16(ip[4:]))
	if ip[0]>>4 != 6 || ip[6] != protocolICMPv6 || ip[7] != hopLimit || length < 24 || len(ip) < IPv6Len+length {
		return nil, from, false
	}
	icmp = ip[IPv6Len : IPv6Len+length]
	return icmp, MAC(b[6:]), icmp[0] == kind && icmp[1] == 0 &&
		finish(add(pseudo6(ip[8:40], len(icmp), protocolICMPv6), icmp)) == 0
}
