package relay

import (
	"encoding/binary"
	"net"
	"slices"

	"golang.org/x/sys/unix"
)

// Offsets in an Ethernet frame with IPv6 and UDP, and in a DHCPv6 message (RFC 9915 sections 8 and 9).
const (
	dhcp6At    = ethernetLen + 40 + 8
	duidAt     = dhcp6At + 4 + 4 + 4 // the link-layer address in the DUID, which is the first option
	clientPort = 546
	serverPort = 547
	relayHead  = 34
)

// Message types of DHCPv6, RFC 9915 section 7.3.
const (
	msgSolicit     = 1
	msgAdvertise   = 2
	msgReply       = 7
	msgReconfigure = 10
	msgRelayForw   = 12
	msgRelayRepl   = 13
)

// Options of DHCPv6, RFC 9915 section 21 and RFC 6939.
const (
	optRelayMessage = 9
	optInterfaceID  = 18
)

// machinesLinkLocal is how many link-local addresses the machines have. The kernel on their side answers for all of
// them: relays that send by a UDP socket ask for its neighbour, and there are no more than a neighbour table holds.
const machinesLinkLocal = 64

// linkLocal is a link-local address of the machines.
func linkLocal(n int) [16]byte {
	return [16]byte{0: 0xfe, 1: 0x80, 8: 0xbe, 14: byte(n >> 8), 15: byte(n + 1)}
}

// allRelays is ff02::1:2, All_DHCP_Relay_Agents_and_Servers (RFC 9915 section 7.1), and its Ethernet address.
var (
	allRelays    = [16]byte{0: 0xff, 1: 2, 13: 1, 15: 2}
	allRelaysMAC = [6]byte{0x33, 0x33, 0, 1, 0, 2}
)

// solicits are SOLICITs of machines on a network card's link.
type solicits struct{ mac net.HardwareAddr }

func (solicits) etherType() int { return unix.ETH_P_IPV6 }

func (s solicits) frame() []byte {
	source := linkLocal(0)
	return frame6(s.mac, source, solicit(s.mac))
}

func (solicits) stamp(frame []byte, n uint32) {
	m := frame[dhcp6At:]
	m[1], m[2], m[3] = byte(n>>16), byte(n>>8), byte(n)
	// Different machines, in an order that spreads over hash tables: the card's address, in the frame and in the DUID.
	binary.BigEndian.PutUint32(frame[8:], n*2654435761)
	binary.BigEndian.PutUint32(frame[duidAt+2:], n*2654435761)
	source := linkLocal(int(n % machinesLinkLocal))
	copy(frame[ethernetLen+8:], source[:])
	sum6(frame)
}

func (solicits) answered(p []byte) (n uint32, ok bool) {
	if len(p) < dhcp6At+4 || p[ethernetLen+6] != unix.IPPROTO_UDP ||
		binary.BigEndian.Uint16(p[dhcp6At-6:]) != clientPort || p[dhcp6At] != msgAdvertise {
		return 0, false
	}
	return binary.BigEndian.Uint32(p[dhcp6At:]) & 0xffffff, true
}

// mask: a transaction of DHCPv6 has 24 bits.
func (solicits) mask() uint32 { return 0xffffff }

// solicit is a message as UEFI's PXE sends it: DUID, what it asks for, architecture, network interface, class, IA_NA.
func solicit(mac net.HardwareAddr) []byte {
	m := []byte{msgSolicit, 0, 0, 0}
	m = option6(m, 1, append([]byte{0, 3, 0, 1}, mac...))
	m = option6(m, 6, []byte{0, 59, 0, 60, 0, 23, 0, 24})
	m = option6(m, 8, []byte{0, 0})
	m = option6(m, 61, []byte{0, 7})
	m = option6(m, 62, []byte{1, 3, 16})
	class := "PXEClient:Arch:00007:UNDI:003016"
	m = option6(m, 16, append([]byte{0, 0, 1, 87, 0, byte(len(class))}, class...))
	return option6(m, 3, []byte{0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0})
}

// option6 adds an option, RFC 9915 section 21.1.
func option6(m []byte, code uint16, value []byte) []byte {
	m = binary.BigEndian.AppendUint16(m, code)
	m = binary.BigEndian.AppendUint16(m, uint16(len(value)))
	return append(m, value...)
}

// frame6 is a frame to all relays, from a client's port.
func frame6(mac net.HardwareAddr, source [16]byte, m []byte) []byte {
	return frame6From(mac, source, clientPort, m)
}

func frame6From(mac net.HardwareAddr, source [16]byte, port uint16, m []byte) []byte {
	f := slices.Concat(allRelaysMAC[:], mac, []byte{0x86, 0xdd})
	length := uint16(8 + len(m))
	f = append(f, 0x60, 0, 0, 0)
	f = binary.BigEndian.AppendUint16(f, length)
	f = append(f, unix.IPPROTO_UDP, 255) // the hop limit of EDK II's messages
	f = slices.Concat(f, source[:], allRelays[:])
	f = binary.BigEndian.AppendUint16(f, port)
	f = binary.BigEndian.AppendUint16(f, serverPort)
	f = binary.BigEndian.AppendUint16(f, length)
	f = append(f, 0, 0)
	f = append(f, m...)
	sum6(f)
	return f
}

// sum6 writes the UDP checksum, without which IPv6 has no UDP (RFC 8200 section 8.1).
func sum6(frame []byte) {
	ip := frame[ethernetLen:]
	udp := ip[40:]
	udp[6], udp[7] = 0, 0
	sum := ^fold(udp, uint32(fold(ip[8:40], unix.IPPROTO_UDP))+uint32(len(udp)))
	if sum == 0 {
		sum = 0xffff
	}
	binary.BigEndian.PutUint16(udp[6:], sum)
}

// turn6 makes a RELAY-FORW the server's answer, in place: a RELAY-REPL with all options as they came, and the client's
// message in it as an ADVERTISE. It goes to where the request came from (RFC 9915 section 19.3).
func turn6(b *batch, i int) {
	m := b.packet(i)
	if len(m) < relayHead || m[0] != msgRelayForw {
		return
	}
	m[0] = msgRelayRepl
	for at := relayHead; at+4 <= len(m); {
		code, length := binary.BigEndian.Uint16(m[at:]), int(binary.BigEndian.Uint16(m[at+2:]))
		if code == optRelayMessage && length > 0 && at+4 < len(m) {
			m[at+4] = msgAdvertise
		}
		at += 4 + length
	}
	b.iovs[i].SetLen(len(m))
}
