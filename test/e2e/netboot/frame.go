package netboot

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"golang.org/x/sys/unix"
)

const (
	ethernetLen = 14
	etherTypeAt = 12
	ipv4Len     = 20
	udpLen      = 8
	serverPort  = 67
	clientPort  = 68
)

var broadcastMAC = net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

// discoverFrame wraps a DHCP message for the way from a client without address to everybody.
func discoverFrame(from net.HardwareAddr, payload []byte) []byte {
	frame := make([]byte, ethernetLen+ipv4Len+udpLen, ethernetLen+ipv4Len+udpLen+len(payload))
	copy(frame, broadcastMAC)
	copy(frame[6:], from)
	binary.BigEndian.PutUint16(frame[12:], unix.ETH_P_IP)
	ip, udp := frame[ethernetLen:], frame[ethernetLen+ipv4Len:]
	ip[0] = 0x45
	binary.BigEndian.PutUint16(ip[2:], uint16(ipv4Len+udpLen+len(payload)))
	ip[8] = 64
	ip[9] = unix.IPPROTO_UDP
	copy(ip[16:20], net.IPv4bcast.To4())
	binary.BigEndian.PutUint16(ip[10:], ^sum(ip[:ipv4Len], 0))
	binary.BigEndian.PutUint16(udp, clientPort)
	binary.BigEndian.PutUint16(udp[2:], serverPort)
	binary.BigEndian.PutUint16(udp[4:], uint16(udpLen+len(payload)))
	frame = append(frame, payload...)
	check := ^udpSum(frame[ethernetLen:ethernetLen+ipv4Len], frame[ethernetLen+ipv4Len:])
	if check == 0 {
		check = 0xffff
	}
	binary.BigEndian.PutUint16(frame[ethernetLen+ipv4Len+6:], check)
	return frame
}

// parseReply returns the answer to a client's message in a frame. It is nil where the frame is none of ours, and
// an error where it is meant for us but no client would take it.
func parseReply(frame []byte, mac net.HardwareAddr, xid dhcpv4.TransactionID) (*dhcpv4.DHCPv4, error) {
	if len(frame) < ethernetLen+ipv4Len || binary.BigEndian.Uint16(frame[12:]) != unix.ETH_P_IP {
		return nil, nil //nolint:nilnil // neither ours nor wrong
	}
	if to := net.HardwareAddr(frame[:6]); !bytes.Equal(to, mac) && !bytes.Equal(to, broadcastMAC) {
		return nil, nil //nolint:nilnil // somebody else's
	}
	ip := frame[ethernetLen:]
	headerLen := int(ip[0]&0x0f) * 4
	total := int(binary.BigEndian.Uint16(ip[2:]))
	if ip[0]>>4 != 4 || headerLen < ipv4Len || total < headerLen+udpLen || total > len(ip) ||
		ip[9] != unix.IPPROTO_UDP || binary.BigEndian.Uint16(ip[6:])&0x3fff != 0 {
		return nil, nil //nolint:nilnil // no whole UDP datagram
	}
	udp := ip[headerLen:total]
	if binary.BigEndian.Uint16(udp[2:]) != clientPort {
		return nil, nil //nolint:nilnil // no DHCP
	}
	payload := udp[udpLen:]
	if len(payload) < 8 || !bytes.Equal(payload[4:8], xid[:]) {
		return nil, nil //nolint:nilnil // another client's, or an earlier answer
	}
	if port := binary.BigEndian.Uint16(udp); port != serverPort {
		return nil, fmt.Errorf("came from port %d", port)
	}
	if sum(ip[:headerLen], 0) != 0xffff {
		return nil, errors.New("wrong IP checksum")
	}
	if length := int(binary.BigEndian.Uint16(udp[4:])); length != len(udp) {
		return nil, fmt.Errorf("UDP length is %d, not %d", length, len(udp))
	}
	if binary.BigEndian.Uint16(udp[6:]) != 0 && udpSum(ip, udp) != 0xffff {
		return nil, errors.New("wrong UDP checksum")
	}
	answer, err := dhcpv4.FromBytes(payload)
	if err != nil {
		return nil, fmt.Errorf("failed to parse: %w", err)
	}
	if answer.OpCode != dhcpv4.OpcodeBootReply {
		return nil, nil //nolint:nilnil // our own, come back by a bridge
	}
	if !bytes.Equal(answer.ClientHWAddr, mac) {
		return nil, fmt.Errorf("chaddr is %s", answer.ClientHWAddr)
	}
	to := net.IP(ip[16:20])
	if !to.Equal(net.IPv4bcast) && !to.Equal(answer.YourIPAddr) {
		return nil, fmt.Errorf("sent to %s, offered %s", to, answer.YourIPAddr)
	}
	return answer, nil
}

// sum is the ones' complement sum of RFC 1071, folded.
func sum(b []byte, start uint32) uint16 {
	total := start
	for ; len(b) >= 2; b = b[2:] {
		total += uint32(b[0])<<8 | uint32(b[1])
	}
	if len(b) == 1 {
		total += uint32(b[0]) << 8
	}
	for total > 0xffff {
		total = total>>16 + total&0xffff
	}
	return uint16(total)
}

// udpSum is the sum of a datagram with the pseudo header of RFC 768.
func udpSum(ip, udp []byte) uint16 {
	return sum(udp, uint32(sum(ip[12:20], unix.IPPROTO_UDP+uint32(len(udp)))))
}
