package mmsg

import (
	"fmt"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/internal/nstest"
)

// open makes a socket inside a namespace.
func open(t *testing.T, ns *nstest.NS, domain, kind int, setUp func(fd int) error) (s *Socket) {
	t.Helper()
	ns.Do(t, func() (err error) {
		if s, err = NewSocket(domain, kind, "test"); err != nil {
			return err
		}
		return s.Control(setUp)
	})
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// TestRecvBatchIsReadyAgain: what the kernel has written into a header during one batch is put right before the next, be
// that longer or shorter. Lengths that an earlier packet left would cut off the addresses of the next.
func TestRecvBatchIsReadyAgain(t *testing.T) {
	ns := nstest.New(t)
	udp := func(port int) *Socket {
		return open(t, ns, unix.AF_INET, unix.SOCK_DGRAM, func(fd int) error {
			if err := unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_PKTINFO, 1); err != nil {
				return err
			}
			return unix.Bind(fd, &unix.SockaddrInet4{Port: port})
		})
	}
	sender, receiver := udp(1), udp(2)
	out := NewSendBatch(false, func(errno unix.Errno) { t.Errorf("failed to send: %v", errno) })
	from, to := netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("127.0.0.2")
	in := NewRecvBatch(8)
	for _, batch := range []int{3, 1, 5, Batch, 2} {
		for i := range batch {
			out.AddUDP([]byte{byte(batch), byte(i)}, netip.AddrPortFrom(to, 2), from, 0)
		}
		out.Flush(sender)
		n, errno := 0, unix.Errno(0)
		if err := receiver.Control(func(fd int) error {
			n, errno = in.receive(fd, unix.MSG_DONTWAIT)
			return nil
		}); err != nil || errno != 0 || n != batch {
			t.Fatalf("received %d of %d: %v, %v", n, batch, err, errno)
		}
		for i := range n {
			b, whole := in.Packet(i)
			at, link, ok := in.Local(i)
			got := fmt.Sprintf("% x", b) + fmt.Sprint(whole, in.From(i), at, link, ok)
			want := fmt.Sprintf("%02x %02x", batch, i) + fmt.Sprint(true, netip.AddrPortFrom(from, 1), to, 1, true)
			if got != want {
				t.Errorf("packet %d of %d: got %s, want %s", i, batch, got, want)
			}
			// As a packet of another kind would leave it.
			in.headers[i].hdr.Namelen, in.headers[i].hdr.Flags = 0, unix.MSG_TRUNC
			in.headers[i].hdr.SetControllen(0)
		}
	}
}

// TestFlushOfClosedSocket tells of every packet.
func TestFlushOfClosedSocket(t *testing.T) {
	s, err := NewSocket(unix.AF_INET, unix.SOCK_DGRAM, "test")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	failed := 0
	out := NewSendBatch(false, func(unix.Errno) { failed++ })
	address := netip.MustParseAddr("127.0.0.1")
	for range 3 {
		out.AddUDP([]byte{1}, netip.AddrPortFrom(address, 9), address, 0)
	}
	out.Flush(s)
	if failed != 3 || out.Len() != 0 {
		t.Errorf("told of %d, %d are left", failed, out.Len())
	}
}
