package frame

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"golang.org/x/net/bpf"
)

// Lengths in bytes of the headers of an IPv6 datagram without extension headers.
const (
	IPv6Len    = 40
	HeaderLen6 = EthernetLen + IPv6Len + UDPLen
)

const (
	etherTypeIPv6     = 0x86dd
	protocolICMPv6    = 58
	headerHopByHop    = 0
	headerFragment    = 44
	headerDestination = 60  // of the same form as headerHopByHop (RFC 8200 section 4.6)
	hopLimit          = 255 // no router is between, and receivers of other protocols check that (RFC 4861)
)

// Parse6 is Parse for UDP in IPv6 without extension headers. A UDP checksum of zero is wrong here (RFC 8200 section
// 8.1).
func Parse6(b []byte, sum Checksum) (Datagram, Fault) {
	if len(b) < HeaderLen6 {
		return Datagram{}, Short
	}
	if binary.BigEndian.Uint16(b[12:]) != etherTypeIPv6 || b[EthernetLen]>>4 != 6 {
		return Datagram{}, NotIPv6
	}
	ip := b[EthernetLen:]
	length := int(binary.BigEndian.Uint16(ip[4:]))
	if IPv6Len+length > len(ip) || length < UDPLen {
		return Datagram{}, Short
	}
	switch ip[6] {
	case protocolUDP:
	case headerFragment:
		return Datagram{}, Fragment
	default:
		return Datagram{}, NotUDP
	}
	udp := ip[IPv6Len : IPv6Len+length]
	udpLen := int(binary.BigEndian.Uint16(udp[4:]))
	if udpLen < UDPLen || udpLen > len(udp) {
		return Datagram{}, BadLength
	}
	udp = udp[:udpLen]
	if sum == Verify && (udp[6] == 0 && udp[7] == 0 || finish(add(pseudo6(ip[8:40], udpLen, protocolUDP), udp)) != 0) {
		return Datagram{}, BadChecksum
	}
	return Datagram{
		DstMAC:  MAC(b[0:6]),
		SrcMAC:  MAC(b[6:12]),
		Src:     netip.AddrPortFrom(netip.AddrFrom16([16]byte(ip[8:24])), binary.BigEndian.Uint16(udp)),
		Dst:     netip.AddrPortFrom(netip.AddrFrom16([16]byte(ip[24:40])), binary.BigEndian.Uint16(udp[2:])),
		Payload: udp[UDPLen:],
	}, OK
}

// pseudo6 is the sum of IPv6's pseudo header (RFC 8200 section 8.1): both addresses, the length and the protocol.
func pseudo6(addresses []byte, length int, protocol uint64) uint64 {
	var rest [8]byte
	binary.BigEndian.PutUint32(rest[:], uint32(length))
	binary.BigEndian.PutUint32(rest[4:], uint32(protocol))
	return add(add(0, addresses), rest[:])
}

// Header6 is what stands in front of a payload in IPv6.
type Header6 struct {
	SrcMAC, DstMAC   MAC
	Src, Dst         [16]byte
	SrcPort, DstPort uint16
}

// Put writes Ethernet, IPv6 and UDP headers into b[:HeaderLen6] for the payload that fills the rest of b. The caller
// keeps b below 64 KiB.
func (h *Header6) Put(b []byte) {
	putIPv6(b, h, protocolUDP)
	udp := b[EthernetLen+IPv6Len:]
	binary.BigEndian.PutUint16(udp[0:], h.SrcPort)
	binary.BigEndian.PutUint16(udp[2:], h.DstPort)
	binary.BigEndian.PutUint16(udp[4:], uint16(len(udp)))
	udp[6], udp[7] = 0, 0
	sum := finish(add(pseudo6(b[EthernetLen+8:EthernetLen+40], len(udp), protocolUDP), udp))
	if sum == 0 {
		sum = 0xffff // zero would mean "no checksum" (RFC 768)
	}
	binary.BigEndian.PutUint16(udp[6:], sum)
}

// putIPv6 writes Ethernet and IPv6 headers into b for what fills the rest of b.
func putIPv6(b []byte, h *Header6, next byte) {
	copy(b[0:6], h.DstMAC[:])
	copy(b[6:12], h.SrcMAC[:])
	binary.BigEndian.PutUint16(b[12:], etherTypeIPv6)
	ip := b[EthernetLen:]
	ip[0], ip[1], ip[2], ip[3] = 0x60, 0, 0, 0
	binary.BigEndian.PutUint16(ip[4:], uint16(len(ip)-IPv6Len))
	ip[6], ip[7] = next, hopLimit
	copy(ip[8:24], h.Src[:])
	copy(ip[24:40], h.Dst[:])
}

// GroupMAC is the Ethernet address of an IPv6 group (RFC 2464 section 7).
func GroupMAC(group [16]byte) MAC { return MAC{0x33, 0x33, group[12], group[13], group[14], group[15]} }

// LinkLocal is the link-local address that an Ethernet address makes by itself (RFC 4291 appendix A).
func LinkLocal(m MAC) [16]byte {
	return [16]byte{0xfe, 0x80, 8: m[0] ^ 2, 9: m[1], 10: m[2], 11: 0xff, 12: 0xfe, 13: m[3], 14: m[4], 15: m[5]}
}

// MACOf is the way back from [LinkLocal]; ok is false for an address that was not made so.
func MACOf(address [16]byte) (m MAC, ok bool) {
	m = MAC{address[8] ^ 2, address[9], address[10], address[13], address[14], address[15]}
	return m, LinkLocal(m) == address && !m.IsGroup()
}

// The group that a DHCPv6 client sends to: all relay agents and servers on its link (RFC 9915 section 7.1).
var allRelays = [16]byte{0xff, 2, 13: 1, 15: 2}

// AllRelays is ff02::1:2.
func AllRelays() [16]byte { return allRelays }

// Filter6 selects, in the kernel, the frames that a DHCPv6 listener is to read: UDP to the port in IPv6 without
// extension headers, to ff02::1:2; the first fragment of such a datagram, and one behind an options header, which are
// only counted.
//
// Like [Filter] it leaves out other hosts' frames, the machine's own transmissions, frames of other VLANs whose tag the
// network card took off, and unicasts, which an ordinary socket receives.
func Filter6(port uint16) ([]bpf.RawInstruction, error) {
	const (
		transport = EthernetLen + IPv6Len

		fragmentLen    = 8      // of the fragment header (RFC 8200 section 4.5)
		fragmentOffset = 0xfff8 // in its third and fourth byte
	)
	program := untagged(
		/*  0 */ bpf.LoadExtension{Num: bpf.ExtType},
		/*  1 */ bpf.JumpIf{Cond: bpf.JumpEqual, Val: packetMulticast, SkipTrue: 2},
		/*  2 */ bpf.JumpIf{Cond: bpf.JumpEqual, Val: packetBroadcast, SkipTrue: 1},
		/*  3 */ bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: packetHost, SkipTrue: 32},
		/*  4 */ bpf.LoadAbsolute{Off: 12, Size: 2},
		/*  5 */ bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: etherTypeIPv6, SkipTrue: 30},
		/*  6 */ bpf.LoadAbsolute{Off: 20, Size: 1},
		/*  7 */ bpf.JumpIf{Cond: bpf.JumpEqual, Val: headerFragment, SkipTrue: 5},
		/*  8 */ bpf.JumpIf{Cond: bpf.JumpEqual, Val: headerHopByHop, SkipTrue: 10},
		/*  9 */ bpf.JumpIf{Cond: bpf.JumpEqual, Val: headerDestination, SkipTrue: 9},
		/* 10 */ bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: protocolUDP, SkipTrue: 25},
		/* 11 */ bpf.LoadAbsolute{Off: transport + 2, Size: 2},
		/* 12 */ bpf.JumpIf{Cond: bpf.JumpEqual, Val: uint32(port), SkipTrue: 14, SkipFalse: 23},
		/* 13 */ bpf.LoadAbsolute{Off: transport, Size: 1}, // a fragment's header
		/* 14 */ bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: protocolUDP, SkipTrue: 21},
		/* 15 */ bpf.LoadAbsolute{Off: transport + 2, Size: 2},
		/* 16 */ bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: fragmentOffset, SkipTrue: 19},
		/* 17 */ bpf.LoadAbsolute{Off: transport + fragmentLen + 2, Size: 2},
		/* 18 */ bpf.JumpIf{Cond: bpf.JumpEqual, Val: uint32(port), SkipTrue: 8, SkipFalse: 17},
		/* 19 */ bpf.LoadAbsolute{Off: transport, Size: 1}, // an options header
		/* 20 */ bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: protocolUDP, SkipTrue: 15},
		/* 21 */ bpf.LoadAbsolute{Off: transport + 1, Size: 1}, // its length in units of 8 bytes, less one
		/* 22 */ bpf.ALUOpConstant{Op: bpf.ALUOpAdd, Val: 1},
		/* 23 */ bpf.ALUOpConstant{Op: bpf.ALUOpShiftLeft, Val: 3},
		/* 24 */ bpf.TAX{},
		/* 25 */ bpf.LoadIndirect{Off: transport + 2, Size: 2},
		/* 26 */ bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: uint32(port), SkipTrue: 9},
		/* 27 */ bpf.LoadAbsolute{Off: 38, Size: 4},
		/* 28 */ bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: 0xff020000, SkipTrue: 7},
		/* 29 */ bpf.LoadAbsolute{Off: 42, Size: 4},
		/* 30 */ bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: 0, SkipTrue: 5},
		/* 31 */ bpf.LoadAbsolute{Off: 46, Size: 4},
		/* 32 */ bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: 0, SkipTrue: 3},
		/* 33 */ bpf.LoadAbsolute{Off: 50, Size: 4},
		/* 34 */ bpf.JumpIf{Cond: bpf.JumpEqual, Val: 0x00010002, SkipFalse: 1},
		/* 35 */ bpf.RetConstant{Val: accept},
		/* 36 */ bpf.RetConstant{Val: 0},
	)
	raw, err := bpf.Assemble(program)
	if err != nil {
		return nil, fmt.Errorf("failed to assemble DHCPv6 listener filter: %w", err)
	}
	return raw, nil
}

// UnicastFilter6 keeps a UDP socket on the wildcard address from waking for what listeners hear anyway: it rejects
// datagrams to groups.
func UnicastFilter6() ([]bpf.RawInstruction, error) {
	const networkHeader = 0xfff00000 // SKF_NET_OFF: offsets count from the IP header (linux/filter.h)
	raw, err := bpf.Assemble([]bpf.Instruction{
		bpf.LoadAbsolute{Off: networkHeader + 24, Size: 1},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: 0xff, SkipTrue: 1},
		bpf.RetConstant{Val: 0xffff},
		bpf.RetConstant{Val: 0},
	})
	if err != nil {
		return nil, fmt.Errorf("failed to assemble DHCPv6 unicast filter: %w", err)
	}
	return raw, nil
}
