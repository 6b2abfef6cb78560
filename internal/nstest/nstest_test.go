package nstest

import (
	"net"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

func TestVethCarriesTraffic(t *testing.T) {
	a, b := New(t), New(t)
	Veth(t, a, "a0", b, "b0")
	a.Addr(t, "a0", "192.0.2.1/24")
	b.Addr(t, "b0", "192.0.2.2/24")

	var server net.PacketConn
	b.Do(t, func() (err error) {
		server, err = net.ListenPacket("udp4", "192.0.2.2:67")
		return err
	})
	defer server.Close()
	a.Do(t, func() error {
		conn, err := net.Dial("udp4", "192.0.2.2:67")
		if err != nil {
			return err
		}
		defer conn.Close()
		_, err = conn.Write([]byte("hello"))
		return err
	})
	buf := make([]byte, 16)
	n, from, err := server.ReadFrom(buf)
	if err != nil {
		t.Fatal(err)
	}
	if got := string(buf[:n]); got != "hello" {
		t.Errorf("got %q, want %q", got, "hello")
	}
	if got := from.(*net.UDPAddr).IP.String(); got != "192.0.2.1" {
		t.Errorf("got sender %s, want 192.0.2.1", got)
	}
}

// A datagram on behalf of a third host must not be lost because the link has only just come up.
func TestLinksAreUsableAtOnce(t *testing.T) {
	a, b := New(t), New(t)
	Veth(t, a, "a0", b, "b0")
	addrs, err := a.Links().AddrList(a.Link(t, "a0"), netlink.FAMILY_V6)
	if err != nil {
		t.Fatal(err)
	}
	for _, addr := range addrs {
		if addr.Flags&unix.IFA_F_TENTATIVE != 0 {
			t.Errorf("%s is tentative", addr.IP)
		}
	}
}
