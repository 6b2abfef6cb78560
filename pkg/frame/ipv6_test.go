package frame

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/net/bpf"
)

// plainSum is the Internet checksum of an IPv6 packet's payload by the words of RFC 8200 section 8.1 and RFC 1071.
func plainSum(packet []byte, protocol byte, payload []byte) uint16 {
	b := append([]byte(nil), packet[8:40]...)
	b = append(b, 0, 0, byte(len(payload)>>8), byte(len(payload)), 0, 0, 0, protocol)
	b = append(b, payload...)
	if len(b)%2 == 1 {
		b = append(b, 0)
	}
	var sum uint32
	for i := 0; i < len(b); i += 2 {
		sum += uint32(b[i])<<8 | uint32(b[i+1])
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// datagram6 is a frame, byte by byte: fe80::ff:fe00:50, port 546, to ff02::1:2, port 547.
func datagram6(tb testing.TB, payload string) []byte {
	tb.Helper()
	length := byte(8 + len(payload))
	b := unhex(tb, `
		333300010002 020000000050 86dd
		60000000 0000 11 ff fe80000000000000000000fffe000050 ff020000000000000000000000010002
		0222 0223 0000 0000`)
	b[19], b[59] = length, length
	b = append(b, payload...)
	binary.BigEndian.PutUint16(b[60:], plainSum(b[14:], 17, b[54:]))
	return b
}

func TestPut6WritesTheFrame(t *testing.T) {
	for _, payload := range []string{"", "h", "hello", "hello, and a longer payload than before"} {
		b := append(bytes.Repeat([]byte{0xee}, HeaderLen6), payload...) // Put has to write every byte
		mac := MAC{2, 0, 0, 0, 0, 0x50}
		h := Header6{
			SrcMAC: mac, DstMAC: GroupMAC(AllRelays()), Src: LinkLocal(mac), Dst: AllRelays(), SrcPort: 546, DstPort: 547,
		}
		h.Put(b)
		if diff := cmp.Diff(datagram6(t, payload), b); diff != "" {
			t.Errorf("%q (-want +got):\n%s", payload, diff)
		}
	}
}

func TestParse6(t *testing.T) {
	tests := map[string]struct {
		change func(b []byte) []byte
		sum    Checksum
		want   Fault
	}{
		"good":                     {},
		"ethernet padding":         {change: func(b []byte) []byte { return append(b, make([]byte, 20)...) }},
		"unfinished, auxdata":      {change: set(60, 0x12, 0x34), sum: Trust},
		"no checksum, auxdata":     {change: set(60, 0, 0), sum: Trust},
		"no checksum (RFC 8200)":   {change: set(60, 0, 0), want: BadChecksum},
		"wrong checksum":           {change: set(60, 0x12, 0x34), want: BadChecksum},
		"changed payload":          {change: set(62, 'j'), want: BadChecksum},
		"changed source":           {change: set(37, 0x51), want: BadChecksum},
		"empty":                    {change: func([]byte) []byte { return nil }, want: Short},
		"headers cut off":          {change: func(b []byte) []byte { return b[:HeaderLen6-1] }, want: Short},
		"one byte short":           {change: func(b []byte) []byte { return b[:len(b)-1] }, want: Short},
		"IPv4":                     {change: set(12, 0x08, 0x00), want: NotIPv6},
		"version 4 inside":         {change: set(14, 0x45), want: NotIPv6},
		"jumbo payload, length 0":  {change: set(18, 0, 0), want: Short},
		"length below UDP's":       {change: set(18, 0, 7), want: Short},
		"TCP":                      {change: set(20, 6), want: NotUDP},
		"hop-by-hop options":       {change: set(20, 0), want: NotUDP},
		"fragment":                 {change: set(20, 44), want: Fragment},
		"UDP length below header":  {change: set(58, 0, 7), want: BadLength},
		"UDP length beyond packet": {change: set(58, 0, 14), want: BadLength},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			b := datagram6(t, "hello")
			if test.change != nil {
				b = test.change(b)
			}
			got, fault := Parse6(b, test.sum)
			if fault != test.want {
				t.Fatalf("got %v, want %v", fault, test.want)
			}
			if fault == OK && (string(got.Payload) != "hello" || got.Src != netip.MustParseAddrPort("[fe80::ff:fe00:50]:546") ||
				got.Dst != netip.MustParseAddrPort("[ff02::1:2]:547") || got.SrcMAC != MAC{2, 0, 0, 0, 0, 0x50}) {
				t.Errorf("got %+v", got)
			}
		})
	}
}

func TestFilter6(t *testing.T) {
	program, err := Filter6(547)
	if err != nil {
		t.Fatal(err)
	}
	multicast := kind(packetMulticast)
	tests := map[string]struct {
		b         []byte
		change    func([]byte) []byte
		extension map[bpf.Extension]uint32
		want      bool
	}{
		"multicast":              {want: true},
		"in an Ethernet unicast": {extension: kind(packetHost), want: true},
		"for another host":       {extension: kind(3)},
		"own transmission":       {extension: kind(4)},
		"another VLAN":           {extension: tag(packetMulticast, 42, true)},
		"priority tag":           {extension: tag(packetMulticast, 0xe000, true), want: true},
		"tag taken off":          {extension: tag(packetMulticast, 20, false), want: true},
		"unicast":                {change: set(38, 0xfe, 0x80)},
		"ff02::1:3":              {change: set(53, 3)},
		"ff05::1:2":              {change: set(38, 0xff, 5)},
		"bits in the middle":     {change: set(44, 1)},
		"bits below":             {change: set(48, 1)},
		"to port 546":            {change: set(56, 2, 34)},
		"TCP":                    {change: set(20, 6)},
		"hop-by-hop options":     {change: options(0, 17, 0, 547), want: true},
		"destination options":    {change: options(60, 17, 0, 547), want: true},
		"16 bytes of options":    {change: options(0, 17, 1, 547), want: true},
		"options to port 546":    {change: options(0, 17, 0, 546)},
		"options past the end":   {change: func(b []byte) []byte { return set(55, 9)(options(0, 17, 0, 547)(b)) }},
		"options before MLD":     {change: options(0, 58, 0, 547)},
		"first fragment":         {change: fragment(17, 0x0001, 547), want: true},
		"only fragment":          {change: fragment(17, 0, 547), want: true},
		"later fragment":         {change: fragment(17, 0x0009, 547)},
		"fragment to port 546":   {change: fragment(17, 0x0001, 546)},
		"fragment of TCP":        {change: fragment(6, 0x0001, 547)},
		"fragment, cut off":      {change: func(b []byte) []byte { return fragment(17, 0x0001, 547)(b)[:64] }},
		"IPv4":                   {change: set(12, 8, 0)},
		"short":                  {change: func(b []byte) []byte { return b[:50] }},
		"router advertisement":   {b: advertisement(t, 0x80)},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			b, extension := test.b, test.extension
			if b == nil {
				b = datagram6(t, "hello")
			}
			if extension == nil {
				extension = multicast
			}
			if b = bytes.Clone(b); test.change != nil {
				b = test.change(b)
			}
			if got := emulate(t, program, b, extension); got != test.want {
				t.Errorf("got %v, want %v", got, test.want)
			}
		})
	}
}

// options puts an options header of a type in front of the UDP header, or of another one. Its length is in units of 8
// bytes, less one.
func options(header, next, length byte, port uint16) func([]byte) []byte {
	return func(b []byte) []byte {
		b[20] = header
		more := append([]byte{next, length, 1, 4, 0, 0, 0, 0}, make([]byte, 8*int(length))...)
		binary.BigEndian.PutUint16(b[EthernetLen+IPv6Len+2:], port)
		return slices.Insert(b, EthernetLen+IPv6Len, more...)
	}
}

// fragment makes a datagram a fragment: of a protocol, with the offset and the flag M as they stand in its header.
func fragment(protocol byte, offset, port uint16) func([]byte) []byte {
	return func(b []byte) []byte {
		header := []byte{protocol, 0, byte(offset >> 8), byte(offset), 0, 0, 0, 1}
		b = slices.Insert(b, EthernetLen+IPv6Len, header...)
		b[20] = headerFragment
		binary.BigEndian.PutUint16(b[18:], uint16(len(b)-EthernetLen-IPv6Len))
		binary.BigEndian.PutUint16(b[EthernetLen+IPv6Len+len(header)+2:], port)
		return b
	}
}

// advertisement is a router's, with these flags.
func advertisement(tb testing.TB, flags uint8) []byte {
	tb.Helper()
	b := unhex(tb, `
		333300000001 020000000001 86dd
		60000000 0010 3a ff fe800000000000000000000000000001 ff020000000000000000000000000001
		86 00 0000 40 00 0708 00000000 00000000`)
	b[59] = flags
	binary.BigEndian.PutUint16(b[56:], plainSum(b[14:], 58, b[54:]))
	return b
}

// TestReport is a report by RFC 2710 with the router alert of RFC 2711: switches that look at MLD need both.
func TestReport(t *testing.T) {
	mac := MAC{2, 0, 0, 0, 0, 1}
	want := unhex(t, `
		333300010002 020000000001 86dd
		60000000 0020 00 01 fe80000000000000000000fffe000001 ff020000000000000000000000010002
		3a 00 05020000 0100
		83 00 0000 0000 0000 ff020000000000000000000000010002`)
	binary.BigEndian.PutUint16(want[64:], plainSum(want[14:], 58, want[62:]))
	got := AppendReport(nil, mac, LinkLocal(mac), AllRelays())
	if diff := cmp.Diff(want, got); diff != "" || len(got) != ReportLen {
		t.Errorf("%d bytes (-want +got):\n%s", len(got), diff)
	}
}

// TestMACOf is the way back from LinkLocal, and nothing else.
func TestMACOf(t *testing.T) {
	for address, want := range map[string]bool{
		"fe80::ff:fe00:50": true, "fe80::50": false, "2001:db8::ff:fe00:50": false, "fe80:0:0:1:0:ff:fe00:50": false,
		"fe80::300:ff:fe00:50": false, // of a group
	} {
		mac, ok := MACOf(netip.MustParseAddr(address).As16())
		if ok != want || ok && mac != (MAC{2, 0, 0, 0, 0, 0x50}) {
			t.Errorf("%s: got %v, %x", address, ok, mac)
		}
	}
}

func FuzzParse6(f *testing.F) {
	f.Add(datagram6(f, "hello"), false)
	f.Add(datagram6(f, "hello")[:61], true)
	f.Add(append(datagram6(f, "hello"), 0, 0, 0), true)
	f.Fuzz(func(t *testing.T, b []byte, trust bool) {
		sum := Verify
		if trust {
			sum = Trust
		}
		got, fault := Parse6(b, sum)
		if fault != OK {
			if got.Payload != nil {
				t.Fatal("a payload in spite of a fault")
			}
			return
		}
		// What was read can be written, and reads the same.
		out := append(make([]byte, HeaderLen6), got.Payload...)
		h := Header6{
			SrcMAC: got.SrcMAC, DstMAC: got.DstMAC, Src: got.Src.Addr().As16(), Dst: got.Dst.Addr().As16(),
			SrcPort: got.Src.Port(), DstPort: got.Dst.Port(),
		}
		h.Put(out)
		again, fault := Parse6(out, Verify)
		if fault != OK {
			t.Fatalf("a frame of ours has fault %v", fault)
		}
		if again.Src != got.Src || again.Dst != got.Dst || string(again.Payload) != string(got.Payload) {
			t.Fatal("reads differently after writing")
		}
	})
}

func BenchmarkPut6(b *testing.B) {
	frame := make([]byte, HeaderLen6+150)
	h := Header6{SrcPort: 547, DstPort: 546}
	b.ReportAllocs()
	for b.Loop() {
		h.Put(frame)
	}
}
