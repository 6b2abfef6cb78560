package offer

import (
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv6"
	"github.com/insomniacslk/dhcp/iana"

	"github.com/tinkerbell/stack/pkg/frame"
)

// solicited is a SOLICIT of a machine, and a whole ADVERTISE for it.
func solicited(t testing.TB) (*Solicit, *dhcpv6.Message) {
	t.Helper()
	arch, err := ArchNamed("http")
	if err != nil {
		t.Fatal(err)
	}
	ask, err := NewSolicit(IPXE, arch, machine)
	if err != nil {
		t.Fatal(err)
	}
	reply, err := dhcpv6.NewAdvertiseFromSolicit(ask.message,
		dhcpv6.WithServerID(&dhcpv6.DUIDLL{HWType: iana.HWTypeEthernet, LinkLayerAddr: net.HardwareAddr{2, 0, 0, 0, 0, 1}}),
		dhcpv6.WithIANA(dhcpv6.OptIAAddress{IPv6Addr: net.ParseIP("2001:db8::64"), ValidLifetime: time.Hour}),
		dhcpv6.WithOption(dhcpv6.OptBootFileURL("http://[2001:db8::2]:7171/auto.ipxe")),
		dhcpv6.WithOption(&dhcpv6.OptVendorClass{EnterpriseNumber: enterprise, Data: [][]byte{[]byte("HTTPClient")}}))
	if err != nil {
		t.Fatal(err)
	}
	return ask, reply
}

// framed6 is a message as a relay sends it.
func framed6(payload []byte) []byte {
	b := append(make([]byte, frame.HeaderLen6), payload...)
	relay := frame.MAC{2, 0, 0, 0, 0, 7}
	h := frame.Header6{SrcMAC: relay, Src: frame.LinkLocal(relay), Dst: [16]byte{0xfe, 0x80, 15: 9}, SrcPort: 547, DstPort: 546}
	h.Put(b)
	return b
}

func TestSolicitIsTheMachinesAndFromUs(t *testing.T) {
	ask, _ := solicited(t)
	own := frame.MAC{2, 0, 0, 0, 0, 9}
	d, fault := frame.Parse6(ask.Frame(own, 4*time.Second), frame.Verify)
	if fault != frame.OK || d.SrcMAC != own || d.Src.Addr() != netip.AddrFrom16(frame.LinkLocal(own)) ||
		d.Dst.String() != "[ff02::1:2]:547" {
		t.Fatal(fault, d)
	}
	m, err := dhcpv6.MessageFromBytes(d.Payload)
	if err != nil {
		t.Fatal(err)
	}
	if m.MessageType != dhcpv6.MessageTypeSolicit || m.Options.ElapsedTime() != 4*time.Second ||
		m.GetOneOption(dhcpv6.OptionRapidCommit) != nil || !m.IsOptionRequested(dhcpv6.OptionBootfileURL) ||
		string(m.Options.VendorClass(enterprise)[0]) != "HTTPClient:Arch:00016:UNDI:003001" ||
		string(m.Options.UserClasses()[0]) != "iPXE" {
		t.Error(m.Summary())
	}
}

func TestAdvertisesAreHeard(t *testing.T) {
	ask, reply := solicited(t)
	h, ok := ask.Hear(framed6(reply.ToBytes()), frame.Verify)
	if !ok || h.Fault != "" || h.Addr != netip.MustParsePrefix("2001:db8::64/128") || h.Class != "HTTPClient" ||
		h.Next != netip.MustParseAddr("2001:db8::2") || h.ID == "" || h.Refusal != "" {
		t.Errorf("%v %+v", ok, h)
	}
	for name, test := range map[string]struct {
		change func(*dhcpv6.Message)
		heard  bool
		fault  string
	}{
		"another client's": {func(m *dhcpv6.Message) {
			m.UpdateOption(dhcpv6.OptClientID(&dhcpv6.DUIDUUID{UUID: [16]byte{1}}))
		}, false, ""},
		"another transaction's": {func(m *dhcpv6.Message) { m.TransactionID[0]++ }, false, ""},
		"a lease":               {func(m *dhcpv6.Message) { m.MessageType = dhcpv6.MessageTypeReply }, true, "no ADVERTISE"},
		"without a server":      {func(m *dhcpv6.Message) { m.Options.Del(dhcpv6.OptionServerID) }, true, "no server"},
	} {
		ask, m := solicited(t)
		test.change(m)
		h, ok := ask.Hear(framed6(m.ToBytes()), frame.Verify)
		if ok != test.heard || !strings.Contains(h.Fault, test.fault) || ok && h.Fault == "" {
			t.Errorf("%s: %v %q", name, ok, h.Fault)
		}
	}
	refused, m := solicited(t)
	m.Options.Del(dhcpv6.OptionIANA)
	m.AddOption(&dhcpv6.OptStatusCode{StatusCode: iana.StatusNoAddrsAvail, StatusMessage: "none"})
	if h, ok := refused.Hear(framed6(m.ToBytes()), frame.Verify); !ok || h.Addr.IsValid() || !strings.Contains(h.Refusal, "none") {
		t.Errorf("a refusal: %v %+v", ok, h)
	}
}

func FuzzHearAdvertise(f *testing.F) {
	ask, reply := solicited(f)
	f.Add(framed6(reply.ToBytes()))
	f.Add(framed6(reply.ToBytes()[:20]))
	f.Fuzz(func(_ *testing.T, b []byte) {
		if h, ok := ask.Hear(b, frame.Trust); ok && h.Fault == "" {
			_ = h.BootData()
		}
	})
}
