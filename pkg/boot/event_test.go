package boot

import (
	"net/netip"
	"testing"
)

func TestBytes(t *testing.T) {
	for text, want := range map[string]string{
		"192.0.2.7": "192.0.2.7", "::ffff:192.0.2.7": "192.0.2.7", "2001:db8::7": "2001:db8::7", "0.0.0.0": "invalid IP",
		"::": "invalid IP",
	} {
		if got := Addr(Bytes(netip.MustParseAddr(text))).String(); got != want {
			t.Errorf("%s: got %s, want %s", text, got, want)
		}
	}
	if got := Bytes(netip.Addr{}); got != ([16]byte{}) {
		t.Errorf("got %v for no address", got)
	}
	if got := Addr(Bytes4([4]byte{192, 0, 2, 7})).String(); got != "192.0.2.7" {
		t.Errorf("got %s", got)
	}
	if got := Bytes4([4]byte{}); got != ([16]byte{}) {
		t.Errorf("got %v for no address", got)
	}
}
