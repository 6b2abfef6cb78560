package relay

import (
	"encoding/binary"
	"net"
	"testing"

	"github.com/insomniacslk/dhcp/dhcpv6"
)

// TestSolicits holds the load to the library: each frame is a SOLICIT of another machine with a right checksum, and the
// server's answer is an ADVERTISE that the generator knows by its transaction.
func TestSolicits(t *testing.T) {
	messages := solicits{net.HardwareAddr{2, 0, 0, 0, 0, 1}}
	frame := messages.frame()
	duids := map[string]bool{}
	for _, n := range []uint32{0, 1, 77, 1<<20 + 5} {
		messages.stamp(frame, n)
		ip := frame[ethernetLen:]
		if sum := fold(ip[40:], uint32(fold(ip[8:40], 17))+uint32(len(ip)-40)); sum != 0xffff {
			t.Errorf("%d: the checksum leaves %#x", n, sum)
		}
		solicit, err := dhcpv6.MessageFromBytes(frame[dhcp6At:])
		if err != nil {
			t.Fatal(err)
		}
		duid, ok := solicit.Options.ClientID().(*dhcpv6.DUIDLL)
		if !ok || duid.LinkLayerAddr.String() != net.HardwareAddr(frame[6:12]).String() {
			t.Errorf("%d: got %s, want the frame's source %s", n, solicit.Options.ClientID(), net.HardwareAddr(frame[6:12]))
		}
		duids[solicit.Options.ClientID().String()] = true
		if binary.BigEndian.Uint32(append([]byte{0}, solicit.TransactionID[:]...)) != n {
			t.Errorf("%d: got transaction %s", n, solicit.TransactionID)
		}

		forward, err := dhcpv6.EncapsulateRelay(solicit, dhcpv6.MessageTypeRelayForward, net.ParseIP("2001:db8::1"), net.ParseIP("fe80::1"))
		if err != nil {
			t.Fatal(err)
		}
		forward.AddOption(dhcpv6.OptInterfaceID([]byte("lan0")))
		b := newBatch(-1, true)
		b.headers[0].n = uint32(copy(b.slots[0][:], forward.ToBytes()))
		turn6(b, 0)
		reply, err := dhcpv6.RelayMessageFromBytes(b.packet(0))
		if err != nil || reply.MessageType != dhcpv6.MessageTypeRelayReply || string(reply.Options.InterfaceID()) != "lan0" {
			t.Fatalf("%d: got %v, %v", n, reply, err)
		}
		inner := reply.Options.RelayMessage()
		if inner.Type() != dhcpv6.MessageTypeAdvertise {
			t.Errorf("%d: got %s in the reply", n, inner.Type())
		}
		answer := frame6(messages.mac, linkLocal(0), inner.ToBytes())
		binary.BigEndian.PutUint16(answer[dhcp6At-6:], clientPort)
		if got, ok := messages.answered(answer); !ok || got != n {
			t.Errorf("%d: its answer is taken for that of %d, %v", n, got, ok)
		}
	}
	if len(duids) != 4 {
		t.Errorf("%d machines for 4 transactions", len(duids))
	}
	if _, ok := messages.answered(frame); ok {
		t.Error("a SOLICIT is taken for an answer")
	}
}
