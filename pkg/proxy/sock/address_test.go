package sock

import (
	"net/netip"
	"reflect"
	"syscall"
	"testing"
)

func TestSockaddr(t *testing.T) {
	for text, want := range map[string]syscall.Sockaddr{
		"192.0.2.1:80":          &syscall.SockaddrInet4{Port: 80, Addr: [4]byte{192, 0, 2, 1}},
		"[::ffff:192.0.2.1]:80": &syscall.SockaddrInet4{Port: 80, Addr: [4]byte{192, 0, 2, 1}},
		"[fe80::1%lo]:80":       &syscall.SockaddrInet6{Port: 80, ZoneId: 1, Addr: [16]byte{0: 0xfe, 1: 0x80, 15: 1}},
		"[fe80::1%7]:80":        &syscall.SockaddrInet6{Port: 80, ZoneId: 7, Addr: [16]byte{0: 0xfe, 1: 0x80, 15: 1}},
		"[2001:db8::1]:80":      &syscall.SockaddrInet6{Port: 80, Addr: [16]byte{0: 0x20, 1: 0x01, 2: 0x0d, 3: 0xb8, 15: 1}},
	} {
		if _, got := sockaddr(netip.MustParseAddrPort(text)); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %+v, want %+v", text, got, want)
		}
	}
}
