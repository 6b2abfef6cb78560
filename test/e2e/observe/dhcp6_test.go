package observe

import (
	"encoding/binary"
	"net"
	"net/netip"
	"testing"

	"github.com/insomniacslk/dhcp/dhcpv6"
	"github.com/insomniacslk/dhcp/iana"
	"golang.org/x/sys/unix"
)

// frame6 builds an Ethernet frame with UDP over IPv6.
func frame6(src, dst net.HardwareAddr, from, to netip.AddrPort, payload []byte) []byte {
	b := append(append(append([]byte{}, dst...), src...), 0x86, 0xdd, 0x60, 0, 0, 0)
	b = binary.BigEndian.AppendUint16(b, uint16(8+len(payload)))
	b = append(append(append(b, unix.IPPROTO_UDP, 64), from.Addr().AsSlice()...), to.Addr().AsSlice()...)
	b = binary.BigEndian.AppendUint16(b, from.Port())
	b = binary.BigEndian.AppendUint16(b, to.Port())
	b = binary.BigEndian.AppendUint16(b, uint16(8+len(payload)))
	return append(append(b, 0, 0), payload...)
}

func TestDHCPv6(t *testing.T) {
	l := newLAN(t)
	fromMachine, everyRelay := netip.MustParseAddrPort("[fe80::1]:546"), netip.MustParseAddrPort("[ff02::1:2]:547")
	solicit, err := dhcpv6.NewSolicit(machine, dhcpv6.WithArchType(iana.EFI_X86_64), dhcpv6.WithUserClass([]byte("iPXE")))
	if err != nil {
		t.Fatal(err)
	}
	solicit.AddOption(&dhcpv6.OptVendorClass{EnterpriseNumber: 343, Data: [][]byte{[]byte("PXEClient:Arch:00007")}})
	multicast := net.HardwareAddr{0x33, 0x33, 0, 1, 0, 2}
	l.put(frame6(machine, multicast, fromMachine, everyRelay, solicit.ToBytes()))
	l.want(Event{
		Machine: machine.String(), Kind: DHCP, Name: "SOLICIT", Detail: `PXEClient:Arch:00007, user class "iPXE"`,
		VendorClass: "PXEClient:Arch:00007", UserClass: "iPXE", IPv6: true,
	})

	advertise, err := dhcpv6.NewAdvertiseFromSolicit(solicit, dhcpv6.WithIANA(dhcpv6.OptIAAddress{
		IPv6Addr: net.ParseIP("2001:db8::7"),
	}))
	if err != nil {
		t.Fatal(err)
	}
	advertise.AddOption(dhcpv6.OptBootFileURL("tftp://[2001:db8::2]/x"))
	fromRelay := netip.MustParseAddrPort("[fe80::2]:547")
	l.put(frame6(node, machine, fromRelay, fromMachine, advertise.ToBytes()))
	l.want(Event{
		Machine: machine.String(), Kind: DHCP, Name: "ADVERTISE", IPv6: true,
		Detail: "2001:db8::7, to its link-local address, boot file tftp://[2001:db8::2]/x",
	})

	refusal, err := dhcpv6.NewAdvertiseFromSolicit(solicit)
	if err != nil {
		t.Fatal(err)
	}
	refusal.AddOption(&dhcpv6.OptStatusCode{StatusCode: iana.StatusNoAddrsAvail, StatusMessage: "none left"})
	l.put(frame6(node, machine, fromRelay, fromMachine, refusal.ToBytes()))
	l.want(
		Event{
			Machine: machine.String(), Kind: DHCP, Name: "ADVERTISE", IPv6: true,
			Detail: "no address, to its link-local address",
		},
		Event{Machine: machine.String(), Kind: Trouble, Detail: "DHCPv6 NoAddrsAvail: none left"},
	)

	// What relays say to each other is no machine's.
	forward, err := dhcpv6.EncapsulateRelay(solicit, dhcpv6.MessageTypeRelayForward, net.IPv6zero, net.ParseIP("fe80::1"))
	if err != nil {
		t.Fatal(err)
	}
	l.put(frame6(machine, multicast, fromMachine, everyRelay, forward.ToBytes()))
	l.want()
}

func TestIPv6Fragments(t *testing.T) {
	whole := frame6(machine, node, netip.MustParseAddrPort("[fe80::1]:546"), netip.MustParseAddrPort("[fe80::2]:547"), []byte("x"))
	for _, at := range []int{10, 20, len(whole) - 1} {
		if p, ok := ParsePacket(whole[:at]); ok {
			t.Errorf("%d bytes of %d: got %+v", at, len(whole), p)
		}
	}
	whole[20] = 44 // a fragment header
	if p, ok := ParsePacket(whole); ok {
		t.Errorf("a fragment: got %+v", p)
	}
}
