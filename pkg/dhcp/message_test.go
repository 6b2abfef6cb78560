package dhcp

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/insomniacslk/dhcp/dhcpv4"
)

// fixed is the fixed part of a request from 02:00:00:00:00:50, without cookie.
func fixed() Message {
	m := make(Message, MinLen)
	m[offOp], m[offHtype], m[offHlen] = 1, 1, 6
	binary.BigEndian.PutUint32(m[offXid:], 0x12345678)
	copy(m[offChaddr:], []byte{2, 0, 0, 0, 0, 0x50})
	return m
}

// with is a request with these options, as they stand.
func with(options ...byte) Message {
	return append(binary.BigEndian.AppendUint32(fixed(), cookie), options...)
}

func TestCheck(t *testing.T) {
	tests := map[string]struct {
		m    Message
		want Fault
	}{
		"discover":                 {m: with(53, 1, 1, 255)},
		"no end (trap 22)":         {m: with(53, 1, 1)},
		"option runs over the end": {m: with(53, 1, 1, 61, 200, 1)},
		"BOOTP, no vendor area":    {m: fixed()},
		"BOOTP, short vendor area": {m: append(fixed(), 0, 0, 0)},
		"part of a wrong magic":    {m: append(fixed(), 1, 2, 3)},
		"BOOTP, zero vendor area":  {m: append(fixed(), make([]byte, 64)...)},
		"hlen 0 (trap 12)":         {m: set(with(255), offHlen, 0)},
		"hlen 16":                  {m: set(with(255), offHlen, 16)},
		"hlen 17 (trap 13)":        {m: set(with(255), offHlen, 17), want: BadHlen},
		"hlen 255":                 {m: set(with(255), offHlen, 255), want: BadHlen},
		"op 0":                     {m: set(with(255), offOp, 0), want: BadOp},
		"op 3":                     {m: set(with(255), offOp, 3), want: BadOp},
		"wrong magic":              {m: set(with(255), offOptions, 0x64)},
		"empty":                    {m: Message{}, want: Short},
		"a byte short":             {m: fixed()[:MinLen-1], want: Short},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if got := test.m.Check(); got != test.want {
				t.Errorf("got %v, want %v", got, test.want)
			}
		})
	}
}

func set(m Message, at int, value byte) Message {
	m[at] = value
	return m
}

func TestType(t *testing.T) {
	tests := map[string]struct {
		m    Message
		want Type
	}{
		"discover":            {m: with(53, 1, 1, 255), want: Discover},
		"behind pads":         {m: with(0, 0, 0, 53, 1, 5, 255), want: Ack},
		"behind others":       {m: with(61, 3, 1, 2, 3, 60, 1, 65, 53, 1, 3), want: Request},
		"unknown number":      {m: with(53, 1, 13, 255), want: Other},
		"zero":                {m: with(53, 1, 0, 255), want: Other},
		"empty":               {m: with(53, 0, 255), want: BOOTP},
		"none":                {m: with(255), want: BOOTP},
		"no cookie":           {m: fixed(), want: BOOTP},
		"behind the end":      {m: with(255, 53, 1, 1), want: BOOTP},
		"length of last byte": {m: with(53), want: BOOTP},
		// Overload (option 52) puts options into file: those are never read.
		"in file": {m: set(set(set(with(52, 1, 1, 255), offFile, 53), offFile+1, 1), offFile+2, 1), want: BOOTP},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if got := test.m.Type(); got != test.want {
				t.Errorf("got %v, want %v", got, test.want)
			}
		})
	}
}

// TestRelayedChangesHopsAndGiaddrOnly is RFC 1542 section 4.1.1: "other fields MUST NOT be modified".
func TestRelayedChangesHopsAndGiaddrOnly(t *testing.T) {
	us, them := [4]byte{10, 0, 0, 1}, [4]byte{10, 9, 9, 9}
	// What a library that parses and rebuilds would damage: options out of order, pads in between, an option
	// split in two (RFC 3396), overload (52), a hlen of 16, no end.
	m := with(61, 2, 1, 2, 0, 0, 53, 1, 1, 52, 1, 3, 12, 1, 'a', 12, 1, 'b', 0)
	m[offHlen] = 16
	for i := range m[44:offOptions] {
		m[44+i] = byte(i)
	}
	want := bytes.Clone(m)
	want[offHops]++
	copy(want[offGiaddr:], us[:])
	m.StampRelay(us)
	if diff := cmp.Diff(want, []byte(m)); diff != "" {
		t.Errorf("first relay (-want +got):\n%s", diff)
	}
	want[offHops]++
	m.StampRelay(them)
	if diff := cmp.Diff(want, []byte(m)); diff != "" {
		t.Errorf("second relay changes giaddr (-want +got):\n%s", diff)
	}
}

// TestPadClearsWhatWasThere is trap 21: memory behind a packet holds an earlier one.
func TestPadClearsWhatWasThere(t *testing.T) {
	slot := bytes.Repeat([]byte{0xaa}, 600)
	n := copy(slot, with(53, 1, 1, 255))
	got := Pad(Message(slot[:n]))
	want := append(with(53, 1, 1, 255), make([]byte, PaddedLen-n)...)
	if diff := cmp.Diff([]byte(want), []byte(got)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if slot[PaddedLen] != 0xaa {
		t.Error("pads beyond 300 bytes")
	}
	long := with(bytes.Repeat([]byte{0}, 400)...)
	if got := Pad(long); len(got) != len(long) {
		t.Errorf("got %d bytes, want a long message as it was", len(got))
	}
}

func FuzzMessage(f *testing.F) {
	f.Add([]byte(with(53, 1, 1, 255)))
	f.Add([]byte(with(53, 1, 1, 61, 255, 1)))
	f.Add([]byte(fixed()))
	f.Add([]byte(with(0, 0, 52, 1, 3, 82, 2, 1, 0, 255)))
	f.Fuzz(func(t *testing.T, b []byte) {
		m := Message(bytes.Clone(b))
		if m.Check() != OK {
			return
		}
		_, _, _, _ = m.Type().String(), m.File(), m.HasOptions(), m.Broadcast()
		m.StampRelay([4]byte{10, 0, 0, 1})
		for i := range b {
			if i != offHops && (i < offGiaddr || i >= offGiaddr+4) && m[i] != b[i] {
				t.Fatalf("byte %d changed", i)
			}
		}
		// The library is the oracle for the type wherever it can read the message at all. It joins split options,
		// which no relay does.
		oracle, err := dhcpv4.FromBytes(b)
		if err != nil || len(oracle.Options.Get(dhcpv4.OptionDHCPMessageType)) != 1 {
			return
		}
		if want := uint8(oracle.MessageType()); want > 0 && want < uint8(Other) && m.Type() != Type(want) {
			t.Fatalf("got type %v, the library says %d", m.Type(), want)
		}
	})
}

// BenchmarkEdit is all that a request costs between the two sockets besides the policy's tables: check, type, hops,
// giaddr, padding.
func BenchmarkEdit(b *testing.B) {
	slot := make([]byte, 600)
	n := copy(slot, with(53, 1, 1, 61, 7, 1, 2, 0, 0, 0, 0, 0x50, 55, 4, 1, 3, 66, 67, 57, 2, 5, 192,
		60, 9, 'P', 'X', 'E', 'C', 'l', 'i', 'e', 'n', 't', 93, 2, 0, 7, 255))
	giaddr := [4]byte{10, 0, 0, 1}
	b.ReportAllocs()
	for b.Loop() {
		m := Message(slot[:n])
		m[offHops] = 0
		m.SetGiaddr([4]byte{})
		if m.Check() != OK || m.Type() != Discover {
			b.Fatal("not a discover")
		}
		m.StampRelay(giaddr)
		Pad(m)
	}
}
