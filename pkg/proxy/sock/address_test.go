package sock

import (
	"net/netip"
	"reflect"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

func TestSockaddr(t *testing.T) {
	for text, want := range map[string]syscall.Sockaddr{
		"192.0.2.1:80":          &syscall.SockaddrInet4{Port: 80, Addr: [4]byte{192, 0, 2, 1}},
		"[::ffff:192.0.2.1]:80": &syscall.SockaddrInet4{Port: 80, Addr: [4]byte{192, 0, 2, 1}},
		"[fe80::1%lo]:80":       &syscall.SockaddrInet6{Port: 80, ZoneId: 1, Addr: [16]byte{0: 0xfe, 1: 0x80, 15: 1}},
		"[fe80::1%7]:80":        &syscall.SockaddrInet6{Port: 80, ZoneId: 7, Addr: [16]byte{0: 0xfe, 1: 0x80, 15: 1}},
		"[2001:db8::1]:80":      &syscall.SockaddrInet6{Port: 80, Addr: [16]byte{0: 0x20, 1: 0x01, 2: 0x0d, 3: 0xb8, 15: 1}},
	} {
		if got, err := sockaddr(netip.MustParseAddrPort(text)); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %+v, %v, want %+v", text, got, err, want)
		}
	}
}

// TestConnectUnknownZone: an address of a link that does not exist is not asked for on any other link.
func TestConnectUnknownZone(t *testing.T) {
	target := netip.MustParseAddrPort("[::1%nolink0]:80")
	fd, err := Open(target)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	waiting, err := Connect(fd, target)
	if waiting || err == nil || !strings.Contains(err.Error(), "failed to find link nolink0: ") {
		t.Errorf("got %v, %v", waiting, err)
	}
}
