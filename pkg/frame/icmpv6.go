package frame

import "encoding/binary"

// ICMPv6 messages that a DHCPv6 listener reads or writes (RFC 4861 section 4.2, RFC 2710 section 3).
const (
	routerAdvertisement = 134
	listenerReport      = 131
)

// Flags of a router advertisement (RFC 4861 section 4.2).
const (
	flagManaged = 0x80
	flagOther   = 0x40
)

// Advertisement is what a router says of DHCPv6 on its link.
type Advertisement struct {
	Router  [16]byte
	Managed bool // M: addresses come from DHCPv6
	Other   bool // O: other configuration does
}

// ParseAdvertisement reads a router advertisement. It is false for any other frame, and for one that did not come from
// a neighbour: by its hop limit and link-local source (RFC 4861 section 6.1.2). The checksum is not looked at, since no
// more than the flags is taken, for a warning.
func ParseAdvertisement(b []byte) (Advertisement, bool) {
	if len(b) < EthernetLen+IPv6Len+16 || binary.BigEndian.Uint16(b[12:]) != etherTypeIPv6 {
		return Advertisement{}, false
	}
	ip := b[EthernetLen:]
	icmp := ip[IPv6Len:]
	if ip[0]>>4 != 6 || ip[6] != protocolICMPv6 || ip[7] != hopLimit || icmp[0] != routerAdvertisement || icmp[1] != 0 ||
		ip[8] != 0xfe || ip[9]&0xc0 != 0x80 {
		return Advertisement{}, false
	}
	return Advertisement{
		Router: [16]byte(ip[8:24]), Managed: icmp[5]&flagManaged != 0, Other: icmp[5]&flagOther != 0,
	}, true
}

// ReportLen is the length of a frame of AppendReport.
const ReportLen = EthernetLen + IPv6Len + 8 + 24

// AppendReport appends a frame that tells switches which look at MLD that this station listens to a group (RFC 2710
// section 3; such switches take version 1 from anybody, RFC 3810 section 8). Without it they may keep the group's
// frames from the station.
func AppendReport(b []byte, from MAC, source, group [16]byte) []byte {
	start := len(b)
	b = append(b, make([]byte, ReportLen)...)
	f := b[start:]
	h := Header6{SrcMAC: from, DstMAC: GroupMAC(group), Src: source, Dst: group}
	putIPv6(f, &h, headerHopByHop)
	ip := f[EthernetLen:]
	ip[7] = 1                                                       // hop limit (RFC 2710 section 3)
	copy(ip[IPv6Len:], []byte{protocolICMPv6, 0, 5, 2, 0, 0, 1, 0}) // router alert: MLD (RFC 2711), and padding
	icmp := ip[IPv6Len+8:]
	icmp[0] = listenerReport
	copy(icmp[8:], group[:])
	binary.BigEndian.PutUint16(icmp[2:], finish(add(pseudo6(ip[8:40], len(icmp), protocolICMPv6), icmp)))
	return b
}
