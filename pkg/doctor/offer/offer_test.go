package offer

import (
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/tinkerbell/stack/pkg/frame"
)

var machine = net.HardwareAddr{0x52, 0x54, 0, 0x5e, 0, 1}

// asked is a DISCOVER of a machine, and a whole OFFER for it.
func asked(t testing.TB) (*Ask, *dhcpv4.DHCPv4) {
	t.Helper()
	arch, err := ArchNamed("uefi")
	if err != nil {
		t.Fatal(err)
	}
	ask, err := New(Firmware, arch, machine)
	if err != nil {
		t.Fatal(err)
	}
	reply, err := dhcpv4.NewReplyFromRequest(ask.message, dhcpv4.WithMessageType(dhcpv4.MessageTypeOffer),
		dhcpv4.WithYourIP(net.IPv4(192, 0, 2, 100)), dhcpv4.WithServerIP(net.IPv4(192, 0, 2, 2)),
		dhcpv4.WithOption(dhcpv4.OptServerIdentifier(net.IPv4(192, 0, 2, 3))), dhcpv4.WithNetmask(net.CIDRMask(24, 32)),
		dhcpv4.WithOption(dhcpv4.OptBootFileName("ipxe.efi\x00")))
	if err != nil {
		t.Fatal(err)
	}
	return ask, reply
}

// framed is a message as a server sends it.
func framed(payload []byte) []byte {
	b := append(make([]byte, frame.HeaderLen), payload...)
	h := frame.Header{DstMAC: frame.Broadcast, Src: [4]byte{192, 0, 2, 3}, Dst: [4]byte{255, 255, 255, 255}, SrcPort: 67, DstPort: 68}
	h.Put(b)
	return b
}

func TestDiscoverIsTheMachinesAndFromUs(t *testing.T) {
	ask, _ := asked(t)
	own := frame.MAC{2, 0, 0, 0, 0, 9}
	d, fault := frame.Parse(ask.Frame(own, 4*time.Second), frame.Verify)
	if fault != frame.OK || d.SrcMAC != own || d.DstMAC != frame.Broadcast {
		t.Fatal(fault, d)
	}
	m, err := dhcpv4.FromBytes(d.Payload)
	if err != nil || m.MessageType() != dhcpv4.MessageTypeDiscover || !m.IsBroadcast() || m.NumSeconds != 4 ||
		m.ClientHWAddr.String() != machine.String() || m.ClassIdentifier() != "PXEClient:Arch:00007:UNDI:003001" {
		t.Errorf("%v, %s", err, m.Summary())
	}
	for _, code := range []uint8{80, 61} { // rapid commit; a client identifier would be another client to the server
		if m.Options.Has(dhcpv4.GenericOptionCode(code)) {
			t.Errorf("it has option %d", code)
		}
	}
}

func TestAnswersAreHeard(t *testing.T) {
	ask, reply := asked(t)
	h, ok := ask.Hear(framed(reply.ToBytes()), frame.Verify)
	if !ok || h.Fault != "" || h.File != "ipxe.efi" || h.Next != netip.MustParseAddr("192.0.2.2") ||
		h.Addr != netip.MustParsePrefix("192.0.2.100/24") || h.Server != netip.MustParseAddr("192.0.2.3") {
		t.Errorf("%v %+v", ok, h)
	}
	for name, test := range map[string]struct {
		change func(*dhcpv4.DHCPv4) []byte
		heard  bool
		fault  string
	}{
		"another client's":      {func(m *dhcpv4.DHCPv4) []byte { m.ClientHWAddr = net.HardwareAddr{1, 2, 3, 4, 5, 6}; return m.ToBytes() }, false, ""},
		"another transaction's": {func(m *dhcpv4.DHCPv4) []byte { m.TransactionID[0]++; return m.ToBytes() }, false, ""},
		"a request":             {func(m *dhcpv4.DHCPv4) []byte { m.OpCode = dhcpv4.OpcodeBootRequest; return m.ToBytes() }, false, ""},
		"a NAK": {func(m *dhcpv4.DHCPv4) []byte {
			m.UpdateOption(dhcpv4.OptMessageType(dhcpv4.MessageTypeNak))
			return m.ToBytes()
		}, true, "NAK"},
		"without a server": {func(m *dhcpv4.DHCPv4) []byte { delete(m.Options, 54); return m.ToBytes() }, true, "option 54"},
		"cut short":        {func(m *dhcpv4.DHCPv4) []byte { return m.ToBytes()[:100] }, true, "cannot be read"},
	} {
		_, m := asked(t)
		m.TransactionID = ask.message.TransactionID
		h, ok := ask.Hear(framed(test.change(m)), frame.Verify)
		if ok != test.heard || !strings.Contains(h.Fault, test.fault) || ok && h.Fault == "" {
			t.Errorf("%s: %v %q", name, ok, h.Fault)
		}
	}
	wrong := framed(reply.ToBytes())
	wrong[len(wrong)-1]++
	if h, ok := ask.Hear(wrong, frame.Verify); !ok || !strings.Contains(h.Fault, "checksum") {
		t.Errorf("a wrong checksum: %v %q", ok, h.Fault)
	}
	if h, ok := ask.Hear(wrong, frame.Trust); !ok || h.Fault != "" {
		t.Errorf("a checksum that nobody has made: %v %q", ok, h.Fault)
	}
}

// Options may stand in the fields of file and server name: servers do so where the others run out of room.
// Of the routes of option 121 the narrowest counts; malformed ones are none.
func TestStaticRoutes(t *testing.T) {
	ask, reply := asked(t)
	for name, test := range map[string]struct {
		option []byte
		by     string // the router to 192.0.9.2; empty: none
	}{
		"none":            {nil, ""},
		"to all":          {[]byte{0, 192, 0, 2, 1}, "192.0.2.1"},
		"elsewhere":       {[]byte{24, 192, 0, 8, 192, 0, 2, 1}, ""},
		"the narrowest":   {[]byte{0, 192, 0, 2, 1, 24, 192, 0, 9, 192, 0, 2, 7, 16, 192, 0, 192, 0, 2, 8}, "192.0.2.7"},
		"bits behind /20": {[]byte{20, 192, 0, 15, 192, 0, 2, 1}, "192.0.2.1"},
		"on the link":     {[]byte{24, 192, 0, 9, 0, 0, 0, 0}, ""},
		"longer than /32": {[]byte{33, 192, 0, 9, 2, 0, 192, 0, 2, 1}, ""},
		"cut short":       {[]byte{0, 192, 0, 2, 1, 24, 192, 0}, ""},
	} {
		reply.UpdateOption(dhcpv4.OptGeneric(dhcpv4.OptionClasslessStaticRoute, test.option))
		h, ok := ask.Hear(framed(reply.ToBytes()), frame.Verify)
		route, found := h.StaticTo(netip.MustParseAddr("192.0.9.2"))
		if got := strings.TrimPrefix(route.By.String(), "invalid IP"); !ok || h.Fault != "" || found != (test.by != "") || got != test.by {
			t.Errorf("%s: got %q, %v (%s)", name, got, found, h.Fault)
		}
	}
}

func TestOverload(t *testing.T) {
	for name, test := range map[string]struct {
		overload    []byte
		file, sname string
		want, fault string
	}{
		"both":          {[]byte{3}, "\x00C\x04ipxe\xff", "\x00\x00C\x04.efi\xff", "ipxe.efi", ""},
		"the file":      {[]byte{1}, "C\x08ipxe.efi", "boot.lab", "ipxe.efi", ""},
		"within itself": {[]byte{1}, "4\x01\x02C\x08ipxe.efi\xff", "C\x03bad", "ipxe.efi", ""},
		"cut short":     {[]byte{1}, "C\xfaipxe.efi", "", "ipxe.efi", ""},
		"four":          {[]byte{4}, "C\x08ipxe.efi", "", "", "overload"},
		"two bytes":     {[]byte{1, 1}, "C\x08ipxe.efi", "", "", "overload"},
	} {
		ask, m := asked(t)
		delete(m.Options, 67)
		m.TransactionID = ask.message.TransactionID
		m.UpdateOption(dhcpv4.OptGeneric(dhcpv4.OptionOptionOverload, test.overload))
		m.BootFileName, m.ServerHostName = "", ""
		b := m.ToBytes()
		copy(b[108:], test.file)
		copy(b[44:], test.sname)
		h, ok := ask.Hear(framed(b), frame.Verify)
		if !ok || !strings.Contains(h.Fault, test.fault) || (h.Fault == "") != (test.fault == "") ||
			test.fault == "" && h.File != test.want {
			t.Errorf("%s: %v %q %q", name, ok, h.Fault, h.File)
		}
	}
}

func TestProgramsAreKnownByTheirBegin(t *testing.T) {
	efi := func(machine ...byte) []byte {
		b := make([]byte, 512)
		copy(b, "MZ")
		b[0x3c] = 0x80
		copy(b[0x80:], append([]byte("PE\x00\x00"), machine...))
		return b
	}
	for _, test := range []struct {
		arch    string
		program []byte
		says    string
	}{
		{"uefi", efi(0x64, 0x86), ""}, {"uefi", efi(0x64, 0xaa), "ARM64"}, {"arm64", efi(0x64, 0xaa), ""},
		{"uefi", []byte("<!DOCTYPE html>"), "HTML"}, {"uefi", nil, "empty"}, {"uefi", []byte("version https://git-lfs"), "no EFI program"},
		{"bios", efi(0x64, 0x86), "EFI program"}, {"bios", []byte{0xea, 5, 0}, ""},
	} {
		arch, err := ArchNamed(test.arch)
		if err != nil {
			t.Fatal(err)
		}
		if got := arch.Starts(test.program); (got == "") != (test.says == "") || !strings.Contains(got, test.says) {
			t.Errorf("%s: %.20q: %q, want %q", test.arch, test.program, got, test.says)
		}
	}
}

func FuzzHear(f *testing.F) {
	ask, reply := asked(f)
	f.Add(framed(reply.ToBytes()))
	f.Add(framed(reply.ToBytes()[:240]))
	for _, routes := range [][]byte{{0, 192, 0, 2, 1}, {33, 192, 0, 9, 2, 0, 192, 0, 2, 1}, {24, 192, 0}, {255}} {
		reply.UpdateOption(dhcpv4.OptGeneric(dhcpv4.OptionClasslessStaticRoute, routes))
		f.Add(framed(reply.ToBytes()))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if h, ok := ask.Hear(b, frame.Trust); ok && h.Fault == "" {
			h.Menu()
			_ = h.BootData()
			h.StaticTo(h.Server)
		}
	})
}
