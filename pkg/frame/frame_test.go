package frame

import (
	"encoding/hex"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/net/bpf"
)

// golden is a frame as another implementation wrote it: 192.0.2.2:67 to 192.0.2.50:68, payload "hello".
const golden = `
	020000000050 020000000001 0800
	4500 0021 0000 4000 4011 b697 c0000202 c0000232
	0043 0044 000d ` + goldenSum + `
	68656c6c6f`

// goldenSum by hand: pseudo header c000+0202+c000+0232+0011+000d = 18452; UDP header 0043+0044+000d = 0094; payload
// 6865+6c6c+6f00 = 143d1; together 2c8b7 -> c8b9 -> 3746. The IP header's: 4500+0021+4000+4011 and the addresses add
// up to 24966 -> 4968 -> b697.
const goldenSum = "3746"

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.Join(strings.Fields(s), ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestPutWritesGoldenFrame(t *testing.T) {
	b := append(make([]byte, HeaderLen), "hello"...)
	for i := range b[:HeaderLen] {
		b[i] = 0xee // Put has to write every byte
	}
	h := Header{
		SrcMAC: MAC{2, 0, 0, 0, 0, 1}, DstMAC: MAC{2, 0, 0, 0, 0, 0x50},
		Src: [4]byte{192, 0, 2, 2}, Dst: [4]byte{192, 0, 2, 50}, SrcPort: 67, DstPort: 68,
	}
	h.Put(b)
	if diff := cmp.Diff(unhex(t, golden), b); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestParse(t *testing.T) {
	tests := map[string]struct {
		change func(b []byte) []byte
		sum    Checksum
		want   Fault
	}{
		"good":                     {},
		"ethernet padding":         {change: func(b []byte) []byte { return append(b, make([]byte, 20)...) }},
		"no checksum":              {change: set(40, 0, 0)},
		"unfinished, auxdata":      {change: set(40, 0x12, 0x34), sum: Trust},
		"wrong checksum":           {change: set(40, 0x12, 0x34), want: BadChecksum},
		"changed payload":          {change: set(42, 'j'), want: BadChecksum},
		"empty":                    {change: func([]byte) []byte { return nil }, want: Short},
		"runt":                     {change: func(b []byte) []byte { return b[:EthernetLen-1] }, want: Short},
		"ethernet header alone":    {change: func(b []byte) []byte { return b[:EthernetLen] }, want: Short},
		"one byte short":           {change: func(b []byte) []byte { return b[:len(b)-1] }, want: Short},
		"ARP":                      {change: set(12, 0x08, 0x06), want: NotIPv4},
		"IPv6 inside":              {change: set(14, 0x65), want: NotIPv4},
		"header length 16":         {change: set(14, 0x44), want: BadHeader},
		"wrong header sum":         {change: set(24, 0, 0), want: BadHeader},
		"TCP":                      {change: fixed(23, 6), want: NotUDP},
		"first fragment":           {change: fixed(20, 0x20, 0), want: Fragment},
		"later fragment":           {change: fixed(20, 0, 1), want: Fragment},
		"UDP length below header":  {change: set(38, 0, 7), want: BadLength},
		"UDP length beyond packet": {change: set(38, 0, 14), want: BadLength},
		"IP length below headers":  {change: fixed(16, 0, 27), want: Short},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			b := unhex(t, golden)
			if test.change != nil {
				b = test.change(b)
			}
			got, fault := Parse(b, test.sum)
			if fault != test.want {
				t.Fatalf("got fault %v, want %v", fault, test.want)
			}
			if fault != OK {
				return
			}
			if got.Src != netip.MustParseAddrPort("192.0.2.2:67") || got.Dst != netip.MustParseAddrPort("192.0.2.50:68") ||
				got.SrcMAC != (MAC{2, 0, 0, 0, 0, 1}) || got.DstMAC != (MAC{2, 0, 0, 0, 0, 0x50}) ||
				len(got.Payload) != 5 {
				t.Errorf("got %+v", got)
			}
		})
	}
}

// set changes bytes.
func set(at int, values ...byte) func([]byte) []byte {
	return func(b []byte) []byte {
		copy(b[at:], values)
		return b
	}
}

// fixed changes bytes of the IP header and mends its checksum.
func fixed(at int, values ...byte) func([]byte) []byte {
	return func(b []byte) []byte {
		copy(b[at:], values)
		b[24], b[25] = 0, 0
		sum := finish(add(0, b[EthernetLen:EthernetLen+IPv4Len]))
		b[24], b[25] = byte(sum>>8), byte(sum)
		return b
	}
}

// TestChecksumOfEveryLength compares with the definition in RFC 1071.
func TestChecksumOfEveryLength(t *testing.T) {
	b := make([]byte, 700)
	for i := range b {
		b[i] = byte(i*7 + i/256*13 + 200)
	}
	for n := range b {
		var want uint32
		for i := 0; i < n; i += 2 {
			word := uint32(b[i]) << 8
			if i+1 < n {
				word |= uint32(b[i+1])
			}
			want += word
			want = want>>16 + want&0xffff
		}
		if got := finish(add(0, b[:n])); got != ^uint16(want) {
			t.Fatalf("length %d: got %04x, want %04x", n, got, ^uint16(want))
		}
	}
}

// TestPseudoHeaderCarries: the sum of the addresses may be so large that protocol and length carry over.
func TestPseudoHeaderCarries(t *testing.T) {
	addresses := []byte{255, 255, 255, 255, 255, 255, 255, 255}
	if got, want := finish(pseudo(addresses, 308)), finish(add(0, []byte{0, 17, 1, 52})); got != want {
		t.Errorf("got %#x, want %#x: addresses of ones add nothing", got, want)
	}
}

// TestZeroChecksumIsSentAsOnes: zero on the wire would mean that there is none.
func TestZeroChecksumIsSentAsOnes(t *testing.T) {
	b := make([]byte, HeaderLen+2)
	h := Header{}
	h.Put(b)
	sum := finish(add(pseudo(b[26:34], UDPLen+2), b[34:]))
	if sum != 0 {
		t.Fatalf("the sum does not verify: %04x", sum)
	}
	// A payload that complements the rest makes the sum zero.
	b[42], b[43] = b[40], b[41]
	h.Put(b)
	if b[40] != 0xff || b[41] != 0xff {
		t.Errorf("got sum %x, want ffff", b[40:42])
	}
	if _, fault := Parse(b, Verify); fault != OK {
		t.Errorf("got %v", fault)
	}
}

func TestFilter(t *testing.T) {
	program, err := Filter(67)
	if err != nil {
		t.Fatal(err)
	}
	tests := map[string]struct {
		change    func([]byte) []byte
		extension map[bpf.Extension]uint32
		want      bool
	}{
		"broadcast":         {extension: kind(packetBroadcast), want: true},
		"multicast":         {extension: kind(packetMulticast), want: true},
		"unicast to us":     {extension: kind(packetHost)},
		"for another host":  {extension: kind(3)},
		"own transmission":  {extension: kind(4)},
		"another VLAN":      {extension: tag(packetBroadcast, 42, true)},
		"priority tag":      {extension: tag(packetBroadcast, 0xe000, true), want: true},
		"tag taken off":     {extension: tag(packetBroadcast, 20, false), want: true},
		"to port 68":        {extension: kind(packetBroadcast), change: set(36, 0, 68)},
		"TCP":               {extension: kind(packetBroadcast), change: set(23, 6)},
		"later fragment":    {extension: kind(packetBroadcast), change: set(20, 0, 1)},
		"don't fragment":    {extension: kind(packetBroadcast), change: set(20, 0x40, 0), want: true},
		"IPv6":              {extension: kind(packetBroadcast), change: set(12, 0x86, 0xdd)},
		"short":             {extension: kind(packetBroadcast), change: func(b []byte) []byte { return b[:30] }},
		"limited broadcast": {extension: kind(packetHost), change: set(30, 255, 255, 255, 255), want: true},
		"IP options": {extension: kind(packetBroadcast), want: true, change: func(b []byte) []byte {
			b[14] = 0x46
			return append(b[:34:34], append([]byte{1, 1, 1, 0}, b[34:]...)...)
		}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			b := append(unhex(t, golden), make([]byte, 300)...)
			b[37] = 67
			if test.change != nil {
				b = test.change(b)
			}
			if got := emulate(t, program, b, test.extension); got != test.want {
				t.Errorf("got %v, want %v", got, test.want)
			}
		})
	}
}

func kind(k uint32) map[bpf.Extension]uint32 { return map[bpf.Extension]uint32{bpf.ExtType: k} }

// tag is what the kernel knows of a frame of a kind that came with a VLAN's tag: its value, which Linux 5.0 to 6.1 keep
// when the tag is no longer present.
func tag(k, value uint32, present bool) map[bpf.Extension]uint32 {
	known := map[bpf.Extension]uint32{bpf.ExtType: k, bpf.ExtVLANTag: value}
	if present {
		known[bpf.ExtVLANTagPresent] = 1
	}
	return known
}

// emulate runs a filter with the kernel's extensions, which bpf.VM lacks: they are put in as constants.
func emulate(t *testing.T, raw []bpf.RawInstruction, b []byte, extensions map[bpf.Extension]uint32) bool {
	t.Helper()
	program, ok := bpf.Disassemble(raw)
	if !ok {
		t.Fatal("cannot disassemble the filter")
	}
	for i, in := range program {
		if load, ok := in.(bpf.LoadExtension); ok {
			program[i] = bpf.LoadConstant{Dst: bpf.RegA, Val: extensions[load.Num]}
		}
	}
	vm, err := bpf.NewVM(program)
	if err != nil {
		t.Fatal(err)
	}
	n, err := vm.Run(b)
	if err != nil {
		t.Fatal(err)
	}
	return n > 0
}

func FuzzParse(f *testing.F) {
	f.Add(unhex(f, golden), false)
	f.Add(unhex(f, golden)[:41], true)
	f.Add(append(unhex(f, golden), 0, 0, 0), true)
	f.Fuzz(func(t *testing.T, b []byte, trust bool) {
		sum := Verify
		if trust {
			sum = Trust
		}
		got, fault := Parse(b, sum)
		if fault != OK {
			if got.Payload != nil {
				t.Fatal("a payload in spite of a fault")
			}
			return
		}
		// What was read can be written, and reads the same.
		out := append(make([]byte, HeaderLen), got.Payload...)
		h := Header{
			SrcMAC: got.SrcMAC, DstMAC: got.DstMAC, Src: got.Src.Addr().As4(), Dst: got.Dst.Addr().As4(),
			SrcPort: got.Src.Port(), DstPort: got.Dst.Port(),
		}
		h.Put(out)
		again, fault := Parse(out, Verify)
		if fault != OK {
			t.Fatalf("a frame of ours has fault %v", fault)
		}
		if again.Src != got.Src || again.Dst != got.Dst || string(again.Payload) != string(got.Payload) {
			t.Fatal("reads differently after writing")
		}
	})
}

func BenchmarkParse(b *testing.B) {
	frame := append(make([]byte, HeaderLen), make([]byte, 300)...)
	h := Header{SrcPort: 68, DstPort: 67}
	h.Put(frame)
	b.ReportAllocs()
	for b.Loop() {
		if _, fault := Parse(frame, Verify); fault != OK {
			b.Fatal(fault)
		}
	}
}

func BenchmarkPut(b *testing.B) {
	frame := make([]byte, HeaderLen+300)
	h := Header{SrcPort: 67, DstPort: 68}
	b.ReportAllocs()
	for b.Loop() {
		h.Put(frame)
	}
}
