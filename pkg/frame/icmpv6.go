package frame

import "encoding/binary"

// listenerReport is a message of ICMPv6 (RFC 2710 section 3).
const listenerReport = 131

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
