package mmsg

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/internal/nstest"
)

// udp makes a UDP socket inside a namespace that tells where packets were sent to.
func udp(t *testing.T, ns *nstest.NS, at unix.Sockaddr) (fd int) {
	t.Helper()
	domain, level, option := unix.AF_INET, unix.IPPROTO_IP, unix.IP_PKTINFO
	if _, ok := at.(*unix.SockaddrInet6); ok {
		domain, level, option = unix.AF_INET6, unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO
	}
	ns.Do(t, func() (err error) {
		fd, err = unix.Socket(domain, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		return err
	})
	t.Cleanup(func() { _ = unix.Close(fd) })
	if err := errors.Join(unix.SetsockoptInt(fd, level, option, 1), unix.Bind(fd, at)); err != nil {
		t.Fatal(err)
	}
	return fd
}

// receive waits for packets, and fails the test where none comes.
func receive(t *testing.T, in *RecvBatch, fd int) int {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); ; {
		n, errno := in.Receive(fd, Batch, unix.MSG_DONTWAIT)
		switch {
		case errno == 0:
			return n
		case errno != unix.EAGAIN && errno != unix.EINTR:
			t.Fatal(errno)
		case time.Now().After(end):
			t.Fatal("no packet came")
		}
		_, _ = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 1000)
	}
}

func failing(t *testing.T) func(unix.Errno) {
	return func(errno unix.Errno) { t.Errorf("failed to send: %v", errno) }
}

// TestSockaddr: what Set has written reads the same.
func TestSockaddr(t *testing.T) {
	for address, scope := range map[string]uint32{
		"192.0.2.1:69": 0, "[2001:db8::1]:65535": 0, "[fe80::1]:514": 7,
	} {
		var s Sockaddr
		want := netip.MustParseAddrPort(address)
		s.Set(want, scope)
		if got := s.AddrPort(); got != want || s.Scope() != scope {
			t.Errorf("got %v by link %d, want %v by %d", got, s.Scope(), want, scope)
		}
	}
	var s Sockaddr
	s.Set(netip.MustParseAddrPort("[::ffff:192.0.2.1]:69"), 0)
	if got := s.AddrPort(); got != netip.MustParseAddrPort("192.0.2.1:69") || s.Len() != unix.SizeofSockaddrInet6 {
		t.Errorf("got %v of a mapped address, in %d bytes", got, s.Len())
	}
	if s := new(Sockaddr); s.AddrPort() != (netip.AddrPort{}) || s.Scope() != 0 {
		t.Errorf("got %v, %d of nothing", s.AddrPort(), s.Scope())
	}
}

// TestRecvBatchIsReadyAgain: Receive resets the lengths that the previous batch left in the headers; shorter ones
// would truncate the next addresses.
func TestRecvBatchIsReadyAgain(t *testing.T) {
	ns := nstest.New(t)
	sender, receiver := udp(t, ns, &unix.SockaddrInet4{Port: 1}), udp(t, ns, &unix.SockaddrInet4{Port: 2})
	out := NewSendBatch(false, failing(t))
	from, to := netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("127.0.0.2")
	in := NewRecvBatch(8)
	for _, batch := range []int{3, 1, 5, Batch, 2} {
		for i := range batch {
			out.AddUDP([]byte{byte(batch), byte(i)}, netip.AddrPortFrom(to, 2), from, 0)
		}
		out.Flush(sender)
		if n := receive(t, in, receiver); n != batch {
			t.Fatalf("received %d of %d", n, batch)
		}
		for i := range batch {
			b, whole := in.Packet(i)
			at, link, direct := in.Local(i)
			got := fmt.Sprintf("% x", b) + fmt.Sprint(whole, in.From(i).AddrPort(), at, link, direct)
			want := fmt.Sprintf("%02x %02x", batch, i) + fmt.Sprint(true, netip.AddrPortFrom(from, 1), to, 1, true)
			if got != want {
				t.Errorf("packet %d of %d: got %s, want %s", i, batch, got, want)
			}
			// As a packet of another kind would leave it.
			in.headers[i].Namelen, in.headers[i].Flags = 0, unix.MSG_TRUNC
			in.headers[i].SetControllen(0)
		}
	}
}

// TestReceive: a limit, a packet that is too long, a slot that was exchanged, and a group.
func TestReceive(t *testing.T) {
	ns := nstest.New(t)
	fd := udp(t, ns, &unix.SockaddrInet4{Port: 2})
	group := [4]byte{224, 0, 0, 251}
	if err := errors.Join(
		unix.SetsockoptInet4Addr(fd, unix.IPPROTO_IP, unix.IP_MULTICAST_IF, [4]byte{127, 0, 0, 1}),
		unix.SetsockoptIPMreqn(fd, unix.IPPROTO_IP, unix.IP_ADD_MEMBERSHIP, &unix.IPMreqn{Multiaddr: group, Ifindex: 1}),
	); err != nil {
		t.Fatal(err)
	}
	slots := make([][]byte, 3)
	for i := range slots {
		slots[i] = make([]byte, 16)
	}
	in, out := NewRecvBatchOf(slots, 4, 8), NewSendBatch(false, failing(t))
	loopback := netip.MustParseAddrPort("127.0.0.1:2")
	out.AddUDP([]byte("12345678"), loopback, netip.Addr{}, 0)
	out.AddUDP([]byte("123456789"), loopback, loopback.Addr(), 0)
	out.AddUDP(nil, netip.AddrPortFrom(netip.AddrFrom4(group), 2), netip.Addr{}, 0)
	out.Flush(fd)
	type packet struct {
		Data          string
		Whole, Direct bool
		At            netip.Addr
		Link          int
	}
	read := func(n int) (got []packet) {
		for i := range n {
			b, whole := in.Packet(i)
			at, link, direct := in.Local(i)
			got = append(got, packet{string(b), whole, direct, at, link})
		}
		return got
	}
	slot := in.Swap(0, make([]byte, 16))
	n, errno := in.Receive(fd, 2, unix.MSG_DONTWAIT)
	if errno != 0 {
		t.Fatal(errno)
	}
	want := []packet{{"12345678", true, true, loopback.Addr(), 1}, {"12345678", false, true, loopback.Addr(), 1}}
	if diff := cmp.Diff(want, read(n), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
		t.Errorf("at most two (-want +got):\n%s", diff)
	}
	if !bytes.Equal(slot, make([]byte, 16)) || string(in.Slot(0)[:12]) != "\x00\x00\x00\x0012345678" {
		t.Errorf("got %q in the slot that was taken out, %q in the other", slot, in.Slot(0))
	}
	want = []packet{{"", true, false, loopback.Addr(), 1}}
	got := read(receive(t, in, fd))
	if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
		t.Errorf("a group, at an address of the link (-want +got):\n%s", diff)
	}
}

// TestFlushGoesOnAfterAFailure checks that Flush sends the packets behind a refused one.
func TestFlushGoesOnAfterAFailure(t *testing.T) {
	ns := nstest.New(t)
	fd := udp(t, ns, &unix.SockaddrInet4{Port: 2})
	var failed []unix.Errno
	out := NewSendBatch(true, func(errno unix.Errno) { failed = append(failed, errno) })
	own := netip.MustParseAddrPort("127.0.0.1:2")
	out.AddUDP([]byte("one"), own, netip.Addr{}, 0)
	out.AddUDP([]byte("two"), netip.MustParseAddrPort("203.0.113.1:9"), netip.Addr{}, 0)
	out.AddUDP([]byte("three"), own, netip.Addr{}, 0)
	out.Flush(fd)
	if diff := cmp.Diff([]unix.Errno{unix.ENETUNREACH}, failed); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if n := receive(t, NewRecvBatch(0), fd); n != 2 {
		t.Errorf("%d packets arrived, want 2", n)
	}
}

// TestSegments: datagrams of one length to one address travel together, and arrive as they were added: also where a
// device takes no segments, since all of them are longer than its MTU.
func TestSegments(t *testing.T) {
	sizes := []int{1000, 1000, 1000, 400, 900, 400, 1300, 1300, 0, 700, 700, 800}
	for _, mtu := range []int{65536, 600} {
		t.Run(fmt.Sprintf("MTU %d", mtu), func(t *testing.T) {
			ns := nstest.New(t)
			if err := ns.Links().LinkSetMTU(ns.Link(t, "lo"), mtu); err != nil {
				t.Fatal(err)
			}
			fd, other := udp(t, ns, &unix.SockaddrInet4{Port: 2}), udp(t, ns, &unix.SockaddrInet4{Port: 3})
			in, out := NewRecvBatch(0), NewSendBatch(true, failing(t))
			address := netip.MustParseAddr("127.0.0.1")
			for round := range 2 {
				for i, size := range sizes {
					out.AddUDP(bytes.Repeat([]byte{byte(i)}, size), netip.AddrPortFrom(address, 2), address, 0)
				}
				out.AddUDP([]byte("elsewhere"), netip.AddrPortFrom(address, 3), netip.Addr{}, 0)
				// 4 datagrams, 2, 1 and 1 that are too long for segments, 1 that is empty, 2, 1, and the one to elsewhere.
				if want := 8; round == 0 && out.messages != want {
					t.Errorf("got %d messages, want %d", out.messages, want)
				}
				out.Flush(fd)
				got := 0
				for got < len(sizes) {
					n := receive(t, in, fd)
					for i := range n {
						b, _ := in.Packet(i)
						if want := bytes.Repeat([]byte{byte(got)}, sizes[got]); !bytes.Equal(b, want) {
							t.Fatalf("packet %d: got %d bytes, want %d", got, len(b), len(want))
						}
						got++
					}
				}
				if n := receive(t, in, other); n != 1 {
					t.Errorf("%d packets arrived elsewhere", n)
				}
			}
			if want := mtu > 600; out.segments != want {
				t.Errorf("segments are sent: %v, want %v", out.segments, want)
			}
		})
	}
}

// TestBatchesDoNotAllocate checks that sending and receiving allocate nothing.
func TestBatchesDoNotAllocate(t *testing.T) {
	ns := nstest.New(t)
	fd := udp(t, ns, &unix.SockaddrInet6{Port: 2})
	in, out := NewRecvBatch(0), NewSendBatch(true, failing(t))
	to, b := netip.MustParseAddrPort("[::1]:2"), make([]byte, 100)
	if n := testing.AllocsPerRun(100, func() {
		for range 10 {
			out.AddUDP(b, to, to.Addr(), 0)
		}
		out.Flush(fd)
		if n, errno := in.Receive(fd, Batch, unix.MSG_DONTWAIT); n != 10 || errno != 0 {
			t.Fatal(n, errno)
		}
	}); n != 0 {
		t.Errorf("got %v allocations, want none", n)
	}
}
