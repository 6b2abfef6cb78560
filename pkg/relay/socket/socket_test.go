package socket

import (
	"errors"
	"net/netip"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/internal/nstest"
	"github.com/tinkerbell/stack/pkg/mmsg"
)

// open makes a socket inside a namespace.
func open(t *testing.T, ns *nstest.NS, domain, kind int, setUp func(fd int) error) (s *Socket) {
	t.Helper()
	ns.Do(t, func() (err error) {
		if s, err = New(domain, kind, "test"); err != nil {
			return err
		}
		return s.Control(setUp)
	})
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// TestSendByClosedSocket tells of every packet, and sends none by a socket that got the descriptor's number.
func TestSendByClosedSocket(t *testing.T) {
	s, err := New(unix.AF_INET, unix.SOCK_DGRAM, "test")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	failed := 0
	out := mmsg.NewSendBatch(false, func(unix.Errno) { failed++ })
	address := netip.MustParseAddr("127.0.0.1")
	for range 3 {
		out.AddUDP([]byte{1}, netip.AddrPortFrom(address, 9), address, 0)
	}
	s.Send(out)
	if failed != 3 || out.Len() != 0 {
		t.Errorf("told of %d, %d are left", failed, out.Len())
	}
}

// TestSocketClosesOnce: a second Close must not close another socket that got the number.
func TestSocketClosesOnce(t *testing.T) {
	s, err := New(unix.AF_INET, unix.SOCK_DGRAM, "test")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	next, err := New(unix.AF_INET, unix.SOCK_DGRAM, "next")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("got %v", err)
	}
	if err := next.Control(func(fd int) error { return unix.Bind(fd, &unix.SockaddrInet4{}) }); err != nil {
		t.Errorf("the next socket: %v", err)
	}
	if err := next.Close(); err != nil {
		t.Errorf("the next socket: %v", err)
	}
}
