package main

import (
	"encoding/binary"
	"net"
	"net/netip"
	"testing"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/mdlayher/packet"

	"github.com/tinkerbell/stack/internal/testwait"
	"github.com/tinkerbell/stack/pkg/frame"
)

// inject puts a frame on the LAN as it is.
func (l *lab) inject(t *testing.T, raw []byte) {
	t.Helper()
	if _, err := l.lan.WriteTo(raw, &packet.Addr{HardwareAddr: frame.Broadcast[:]}); err != nil {
		t.Fatal(err)
	}
}

// fixIPSum mends the IP header's checksum of a frame.
func fixIPSum(b []byte) []byte {
	ip := b[frame.EthernetLen : frame.EthernetLen+frame.IPv4Len]
	ip[10], ip[11] = 0, 0
	var sum uint32
	for i := 0; i < len(ip); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(ip[i:]))
	}
	sum = sum>>16 + sum&0xffff
	binary.BigEndian.PutUint16(ip[10:], ^uint16(sum>>16+sum))
	return b
}

// TestNegativeFramesOfClients is bad input from the LAN by the names of sonic-mgmt's test_dhcp_relay_negative.py. Its
// malformed_client_frame_l2_runt, below 14 bytes, cannot be sent at all; TestParse has it.
func TestNegativeFramesOfClients(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	p := l.start(t, "CLIENT_RATE=-1")
	p.waitReady(t)
	framed := func(m *dhcpv4.DHCPv4) []byte {
		b := append(make([]byte, frame.HeaderLen), m.ToBytes()...)
		header := frame.Header{
			SrcMAC: frame.MAC(clientMAC), DstMAC: frame.Broadcast, Dst: [4]byte{255, 255, 255, 255},
			SrcPort: 68, DstPort: 67,
		}
		header.Put(b)
		return b
	}
	good := func() []byte { return framed(discover(t)) }
	relayed := func(giaddr netip.Addr) []byte { // as an earlier relay leaves it
		m := discover(t, dhcpv4.WithRelay(giaddr.AsSlice()),
			dhcpv4.WithOption(dhcpv4.OptGeneric(dhcpv4.OptionRelayAgentInformation, []byte{1, 4, 'v', 'l', 'a', 'n'})))
		return framed(m)
	}
	message := func(at int, values ...byte) []byte {
		b := good()
		copy(b[frame.HeaderLen+at:], values)
		b[40], b[41] = 0, 0 // no UDP checksum
		return b
	}
	flip := func(at int) []byte {
		b := good()
		b[at] ^= 0x55
		return b
	}
	partial := func(length, bytes int) []byte {
		b := good()
		binary.BigEndian.PutUint16(b[16:], uint16(length))
		return fixIPSum(b)[:bytes]
	}
	tests := map[string]struct {
		raw    []byte
		reason string // empty: the kernel's filter refuses it, and it is not counted
	}{
		"hop_limit_exceeded":                     {message(3, 255), "hop-limit"},
		"discard_relay_from_relay":               {relayed(netip.MustParseAddr("203.0.113.1")), "untrusted-relay"},
		"discard_relay_from_relay_our_giaddr":    {relayed(podIP), "loop"},
		"discard_relay_from_relay_no_option82":   {message(24, 203, 0, 113, 1), "untrusted-relay"},
		"bad_ip_checksum":                        {flip(24), "bad-ip-header"},
		"bad_udp_checksum":                       {flip(40), "bad-udp-checksum"},
		"malformed_client_frame_l2_only":         {good()[:frame.EthernetLen], ""},
		"malformed_client_frame_l2_only_padded":  {append(good()[:frame.EthernetLen], make([]byte, 46)...), ""},
		"malformed_client_frame_no_udp":          {good()[:frame.EthernetLen+frame.IPv4Len], ""},
		"malformed_client_frame_partial_udp":     {partial(20+4, len(good())), "short-frame"},
		"malformed_client_frame_partial_udp_60":  {partial(20+4, 60), "short-frame"},
		"malformed_client_frame_cut_message":     {good()[:100], "short-frame"},
		"malformed_client_frame_lying_ip_length": {partial(20+8+100, len(good())), "bad-udp-length"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			drops := `dhcp_relay_drops_total{direction="to-server",listener="macvlan0",reason="` + test.reason + `"}`
			before := max(0, p.metric(drops)) // it is not there yet
			l.inject(t, test.raw)
			if test.reason != "" {
				testwait.Until(t, "a drop for "+test.reason, func() bool { return p.metric(drops) == before+1 })
			}
			silent(t, l.smee)
		})
	}
	l.served(t) // and the relay is well
}

// TestNegativeReplies is bad input from servers, by the same names: what nobody asked for is dropped whatever its option
// 82 says, and what was asked for reaches the client without our option 82, however mutilated that comes back.
func TestNegativeReplies(t *testing.T) {
	t.Parallel()
	replies := map[string][]dhcpv4.Modifier{
		"server_offer_missing_circuit_id": {
			dhcpv4.WithOption(dhcpv4.OptGeneric(dhcpv4.OptionRelayAgentInformation, []byte{2, 2, 'r', 'r'})),
		},
		"malformed_option82_tlv": {
			dhcpv4.WithOption(dhcpv4.OptGeneric(dhcpv4.OptionRelayAgentInformation, []byte{1, 10, 'x'})),
		},
		"malformed_option82_tlv_without_value": {
			dhcpv4.WithOption(dhcpv4.OptGeneric(dhcpv4.OptionRelayAgentInformation, []byte{1, 10})),
		},
		"unknown_giaddr_from_server": {
			dhcpv4.WithRelay(net.IP{99, 99, 99, 99}), dhcpv4.WithoutOption(dhcpv4.OptionRelayAgentInformation),
		},
	}
	l := newLab(t)
	p := l.start(t, "CLIENT_RATE=-1", "AGENT_OPTIONS=circuit-id")
	p.waitReady(t)
	pod := netip.AddrPortFrom(podIP, 67)
	for name, modifiers := range replies {
		t.Run(name, func(t *testing.T) {
			const unsolicited = `dhcp_relay_drops_total{direction="to-client",listener="unicast",reason="unsolicited"}`
			before := p.metric(unsolicited)
			send(t, l.smee, answer(t, discover(t).ToBytes(), dhcpv4.MessageTypeOffer, modifiers...), pod)
			testwait.Until(t, "the reply is dropped", func() bool { return p.metric(unsolicited) == before+1 })
			l.quiet(t)

			l.broadcast(t, discover(t).ToBytes())
			request, from := receive(t, l.smee)
			send(t, l.smee, answer(t, request, dhcpv4.MessageTypeOffer, modifiers...), from)
			offer, err := dhcpv4.FromBytes(l.hear(t).Payload)
			if err != nil {
				t.Fatal(err)
			}
			if offer.RelayAgentInfo() != nil {
				t.Errorf("the client gets option 82: %v", offer.RelayAgentInfo())
			}
		})
	}
}
