package tcp

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/internal/nstest"
	"github.com/tinkerbell/stack/pkg/proxy/admission"
)

// from connects by a source address, and is whether the connection is served.
func (r running) from(t *testing.T, source, to string) (net.Conn, bool) {
	t.Helper()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(source)}}
	var c net.Conn
	err := error(unix.ENETUNREACH)
	for errors.Is(err, unix.ENETUNREACH) && t.Context().Err() == nil { // until the address is there
		c, err = dialer.Dial("tcp", net.JoinHostPort(to, fmt.Sprint(r.Addr().Port())))
	}
	if err != nil {
		return nil, false
	}
	t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	_, _ = io.WriteString(c, "x")
	_, err = io.ReadFull(c, make([]byte, 1))
	return c, err == nil
}

// Connections of a client with many are evicted for those of clients with few.
func TestIdleSessionsMakeRoom(t *testing.T) {
	r := startBy(t, Config{
		Listen: netip.MustParseAddrPort("127.0.0.1:0"), Settings: Settings{Drain: 10 * time.Second},
		Account: admission.New(admission.Limits{Memory: 1 << 30, Descriptors: 16}, nil),
	}, backend(t, echo))
	first, ok := r.from(t, "127.0.0.10", "127.0.0.1")
	if !ok {
		t.Fatal("not served")
	}
	for range 3 {
		if _, ok := r.from(t, "127.0.0.10", "127.0.0.1"); !ok {
			t.Fatal("not served")
		}
	}
	if _, ok := r.from(t, "127.0.0.10", "127.0.0.1"); ok {
		t.Error("one client has more than half")
	}
	if n := testutil.ToFloat64(r.refusals.WithLabelValues("r", "client_share")); n != 1 {
		t.Errorf("%v were refused", n)
	}
	for i := range 6 {
		if _, ok := r.from(t, fmt.Sprintf("127.0.0.%d", 20+i), "127.0.0.1"); !ok {
			t.Errorf("client %d is not served", i)
		}
	}
	if n, err := first.Read(make([]byte, 1)); n > 0 || err == nil {
		t.Error("the first is still there")
	}
}

// IPv6 clients are counted by their /64, as for the limits on requests.
func TestClientLimitCountsPrefixes(t *testing.T) {
	ns := nstest.New(t)
	for _, a := range []string{"2001:db8::1/64", "2001:db8::2/64", "2001:db8:0:1::1/64"} {
		ns.Addr(t, "lo", a)
	}
	endpoint := backend(t, echo) // outside, where the loops are
	var r running
	ns.Do(t, func() error {
		r = startBy(t, Config{
			Listen: netip.MustParseAddrPort("[::]:0"), Settings: Settings{MaxPerClient: 1, Drain: time.Second},
		}, endpoint)
		return nil
	})
	for i, test := range []struct {
		from  string
		taken bool
	}{{"2001:db8::1", true}, {"2001:db8::2", false}, {"2001:db8:0:1::1", true}} {
		ns.Do(t, func() error {
			if _, ok := r.from(t, test.from, "2001:db8::1"); ok != test.taken {
				t.Errorf("connection %d from %s: taken %v", i, test.from, ok)
			}
			return nil
		})
	}
}

// holder has a charge of its own.
type holder struct{ admission.Charge }

func (*holder) Evict() {}

// A connection that was opened while others used much, with a small receive buffer, gets a large one when they have gone.
func TestBoundOfBusyTimesIsLifted(t *testing.T) {
	r := startBy(t, Config{
		Listen:  netip.MustParseAddrPort("127.0.0.1:0"),
		Account: admission.New(admission.Limits{Memory: 256 << 20, Descriptors: 1 << 10}, nil),
	}, backend(t, func(c *net.TCPConn) {
		for b := make([]byte, 1<<20); ; {
			if _, err := c.Write(b); err != nil {
				return
			}
		}
	}))
	others := &holder{}
	cost := admission.Cost{Memory: 32 << 20}
	if why := r.account.Admit(&others.Charge, others, netip.MustParseAddr("192.0.2.1"), cost); why != admission.Admitted {
		t.Fatal(why)
	}
	conn := r.dial(t)
	received := func() (size int) {
		for s := range r.conns.All() {
			done := make(chan struct{})
			go s.do(func() {
				defer close(done)
				size, _ = unix.GetsockoptInt(s.server.fd, unix.SOL_SOCKET, unix.SO_RCVBUF)
			})
			<-done
		}
		return size
	}
	if _, err := io.CopyN(io.Discard, conn, 64<<10); err != nil {
		t.Fatal(err)
	}
	small := received()
	others.Release()
	for i := 0; received() <= small; i++ {
		if i == 64 {
			t.Fatalf("the receive buffer is still bounded to %d bytes", small)
		}
		if _, err := io.CopyN(io.Discard, conn, 8<<20); err != nil {
			t.Fatal(err)
		}
	}
}
