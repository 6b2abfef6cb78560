package udp

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/internal/nstest"
	"github.com/tinkerbell/stack/internal/testwait"
	"github.com/tinkerbell/stack/pkg/proxy/datagram"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	clientIP = "192.0.2.1"
	proxyIP  = "192.0.2.2"
	serverIP = "198.51.100.2"
	proxy6   = "2001:db8:1::2"
	server6  = "2001:db8:2::2"
)

type lab struct{ client, proxy, server *nstest.NS }

func newLab(t testing.TB) *lab {
	l := &lab{client: nstest.New(t), proxy: nstest.New(t), server: nstest.New(t)}
	nstest.Veth(t, l.client, "c0", l.proxy, "p0")
	nstest.Veth(t, l.proxy, "p1", l.server, "s0")
	for _, a := range []struct {
		ns         *nstest.NS
		link, cidr string
	}{
		{l.client, "c0", clientIP + "/24"}, {l.client, "c0", "2001:db8:1::1/64"},
		{l.proxy, "p0", "192.0.2.200/24"}, {l.proxy, "p0", proxyIP + "/24"}, {l.proxy, "p0", proxy6 + "/64"},
		{l.proxy, "p1", "198.51.100.1/24"}, {l.proxy, "p1", "2001:db8:2::1/64"},
		{l.server, "s0", serverIP + "/24"}, {l.server, "s0", "198.51.100.3/24"}, {l.server, "s0", server6 + "/64"},
	} {
		a.ns.Addr(t, a.link, a.cidr)
	}
	return l
}

func to(endpoint string) func(netip.Addr) (netip.AddrPort, error) {
	at := netip.MustParseAddrPort(endpoint)
	return func(netip.Addr) (netip.AddrPort, error) { return at, nil }
}

func (l *lab) front(t testing.TB, c Config) *Front {
	t.Helper()
	f, err := l.listenAt(t, c, netip.AddrPortFrom(netip.Addr{}, 5000))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// listenAt opens a front and serves it until the test ends.
func (l *lab) listenAt(t testing.TB, c Config, at netip.AddrPort) (*Front, error) {
	t.Helper()
	c.Route, c.Listen = "udp", at
	c.Metrics = NewMetrics(prometheus.NewRegistry())
	ctx, cancel := context.WithCancel(context.Background())
	var f *Front
	if err := l.proxy.Try(func() (err error) {
		f, err = Listen(c)
		return err
	}); err != nil {
		cancel()
		return nil, err
	}
	done := make(chan error, 1)
	go func() { done <- l.proxy.Try(func() error { return f.Serve(ctx) }) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	return f, nil
}

func listen(t testing.TB, ns *nstest.NS, at string) *net.UDPConn {
	t.Helper()
	var conn *net.UDPConn
	ns.Do(t, func() (err error) {
		conn, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.MustParseAddrPort(at)))
		return err
	})
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// echo answers everything with what it got, from the port it was asked.
func echo(t testing.TB, ns *nstest.NS, at string) {
	t.Helper()
	conn := listen(t, ns, at)
	var running sync.WaitGroup
	running.Go(func() {
		buf := make([]byte, 65536)
		for {
			n, from, err := conn.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			_, _ = conn.WriteToUDPAddrPort(buf[:n], from)
		}
	})
	t.Cleanup(func() {
		_ = conn.Close()
		running.Wait()
	})
}

func exchange(t testing.TB, conn *net.UDPConn, b []byte, server string) []byte {
	t.Helper()
	at := netip.MustParseAddrPort(server)
	if _, err := conn.WriteToUDPAddrPort(b, at); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 65536)
	_ = conn.SetReadDeadline(time.Now().Add(5 * time.Second))
	n, from, err := conn.ReadFromUDPAddrPort(buf)
	if err != nil {
		t.Fatal(err)
	}
	if from = netip.AddrPortFrom(from.Addr().Unmap(), from.Port()); from != at {
		t.Errorf("answered from %s, asked %s", from, at)
	}
	return buf[:n]
}

func TestEcho(t *testing.T) {
	l := newLab(t)
	echo(t, l.server, serverIP+":5000")
	f := l.front(t, Config{Pick: to(serverIP + ":5000")})
	for _, ask := range []string{proxyIP + ":5000", "192.0.2.200:5000", "[" + proxy6 + "]:5000"} {
		conn := listen(t, l.client, netip.AddrPortFrom(netip.IPv6Unspecified(), 0).String())
		for _, n := range []int{0, 1, 1472, 65507} {
			b := bytes.Repeat([]byte{byte(n)}, n)
			if got := exchange(t, conn, b, ask); !bytes.Equal(got, b) {
				t.Errorf("%s: got %d bytes of %d", ask, len(got), n)
			}
		}
	}
	if f.Sessions() != 3 {
		t.Errorf("got %d sessions, want 3", f.Sessions())
	}
}

// One client socket asks two addresses of the proxy, as of two services on one route: each answers for itself.
func TestAnswersComeFromTheAddressAsked(t *testing.T) {
	l := newLab(t)
	echo(t, l.server, serverIP+":5000")
	f := l.front(t, Config{Pick: to(serverIP + ":5000")})
	conn := listen(t, l.client, clientIP+":6000")
	for _, at := range []string{proxyIP + ":5000", "192.0.2.200:5000", proxyIP + ":5000"} {
		exchange(t, conn, []byte("to "+at), at)
	}
	if got := f.Sessions(); got != 2 {
		t.Errorf("got %d sessions, want one for each address", got)
	}
}

// RFC 1122 section 3.2.1.3: what was sent to a broadcast address is answered from the interface's own.
func TestBroadcastIsAnswered(t *testing.T) {
	l := newLab(t)
	echo(t, l.server, serverIP+":5000")
	f := l.front(t, Config{Pick: to(serverIP + ":5000")})
	conn := listen(t, l.client, clientIP+":6000")
	raw, err := conn.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	_ = raw.Control(func(fd uintptr) { err = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_BROADCAST, 1) })
	if err != nil {
		t.Fatal(err)
	}
	at := "192.0.2.255:5000"
	for range 2 {
		if _, err := conn.WriteToUDPAddrPort([]byte("a"), netip.MustParseAddrPort(at)); err != nil {
			t.Fatal(err)
		}
		_ = conn.SetReadDeadline(time.Now().Add(5 * time.Second))
		_, from, err := conn.ReadFromUDPAddrPort(make([]byte, 100))
		if err != nil {
			t.Fatalf("asked %s, no answer: %v", at, err)
		}
		at = netip.AddrPortFrom(from.Addr().Unmap(), from.Port()).String() // goes on with the address that answered
	}
	if at != "192.0.2.200:5000" || f.Sessions() != 1 {
		t.Errorf("answered from %s, %d sessions", at, f.Sessions())
	}
}

func TestSessionsEnd(t *testing.T) {
	l := newLab(t)
	echo(t, l.server, serverIP+":5000")
	f := l.front(t, Config{Pick: to(serverIP + ":5000"), Idle: 50 * time.Millisecond})
	exchange(t, listen(t, l.client, clientIP+":0"), []byte("x"), proxyIP+":5000")
	testwait.Until(t, "the session gone", func() bool { return f.Sessions() == 0 })
	if got := counter(f.handler.meters.ended[EndingIdle]); got != 1 {
		t.Errorf("got %v idle sessions, want 1", got)
	}
}

func TestBounds(t *testing.T) {
	l := newLab(t)
	echo(t, l.server, serverIP+":5000")
	f := l.front(t, Config{Pick: to(serverIP + ":5000"), MaxSessions: 3, MaxSessionsPerClient: 2})
	l.client.Addr(t, "c0", "192.0.2.66/24")
	ask := func(from, at string, confirm bool) *net.UDPConn {
		conn := listen(t, l.client, from)
		if confirm {
			exchange(t, conn, []byte("x"), at)
			exchange(t, conn, []byte("y"), at)
		} else {
			_, _ = conn.WriteToUDPAddrPort([]byte("x"), netip.MustParseAddrPort(at))
		}
		return conn
	}
	at, at6 := proxyIP+":5000", "["+proxy6+"]:5000"
	first := ask(clientIP+":0", at, true)
	ask(clientIP+":0", at, true)
	ask(clientIP+":0", at, false)
	testwait.Until(t, "one refused", func() bool { return counter(f.handler.meters.drops[datagram.DropClientLimit]) == 1 })
	// A client that asks again gets the place of one that has not reacted to an answer, not of those that have.
	ask("192.0.2.66:0", at, false)
	insistent := ask("[2001:db8:1::1]:0", at6, false)
	testwait.Until(t, "another refused", func() bool { return counter(f.handler.meters.drops[datagram.DropTableFull]) == 1 })
	exchange(t, insistent, []byte("x"), at6)
	if got := counter(f.handler.meters.ended[EndingEvicted]); got != 1 {
		t.Errorf("%v sessions gave way, want 1", got)
	}
	exchange(t, first, []byte("z"), at)
}

func TestRefusedEndpointIsReported(t *testing.T) {
	l := newLab(t)
	echo(t, l.server, serverIP+":5000")
	var mu sync.Mutex
	var reports []string
	dead := true
	f := l.front(t, Config{
		Pick: func(netip.Addr) (netip.AddrPort, error) {
			mu.Lock()
			defer mu.Unlock()
			if dead {
				return netip.MustParseAddrPort("198.51.100.3:5000"), nil
			}
			return netip.MustParseAddrPort(serverIP + ":5000"), nil
		},
		Report: func(at netip.AddrPort, err error) {
			mu.Lock()
			defer mu.Unlock()
			dead = false
			reports = append(reports, fmt.Sprint(at, " ", err))
		},
	})
	conn := listen(t, l.client, clientIP+":0")
	_, _ = conn.WriteToUDPAddrPort([]byte("x"), netip.MustParseAddrPort(proxyIP+":5000"))
	testwait.Until(t, "refusal", func() bool { return counter(f.handler.meters.ended[EndingUnreachable]) == 1 })
	if got := exchange(t, conn, []byte("again"), proxyIP+":5000"); string(got) != "again" {
		t.Errorf("got %q", got)
	}
	mu.Lock()
	defer mu.Unlock()
	if got := strings.Join(reports, "; "); !strings.HasPrefix(got, "198.51.100.3:5000 endpoint refused") ||
		!strings.HasSuffix(got, "198.51.100.2:5000 <nil>") {
		t.Errorf("got reports %s", got)
	}
}

func TestLoopIsDropped(t *testing.T) {
	l := newLab(t)
	f := l.front(t, Config{Pick: to(proxyIP + ":5000")})
	conn := listen(t, l.client, clientIP+":0")
	_, _ = conn.WriteToUDPAddrPort([]byte("x"), netip.MustParseAddrPort(proxyIP+":5000"))
	testwait.Until(t, "loop", func() bool { return counter(f.handler.meters.drops[datagram.DropLoop]) == 1 })
	if f.Sessions() != 1 {
		t.Errorf("got %d sessions, want 1", f.Sessions())
	}
}

func TestStranger(t *testing.T) {
	l := newLab(t)
	server := listen(t, l.server, serverIP+":5000")
	f := l.front(t, Config{Pick: to(serverIP + ":5000")})
	conn := listen(t, l.client, clientIP+":0")
	_, _ = conn.WriteToUDPAddrPort([]byte("x"), netip.MustParseAddrPort(proxyIP+":5000"))
	buf := make([]byte, 100)
	_, session, err := server.ReadFromUDPAddrPort(buf)
	if err != nil {
		t.Fatal(err)
	}
	for _, at := range []string{"198.51.100.3:5000", serverIP + ":5001"} {
		_, _ = listen(t, l.server, at).WriteToUDPAddrPort([]byte("evil"), session)
	}
	testwait.Until(t, "strangers dropped", func() bool { return counter(f.handler.meters.drops[datagram.DropStranger]) == 2 })
}

// Nobody can be answered at port 0, and a backend must not be asked for nobody.
func TestPortZero(t *testing.T) {
	l := newLab(t)
	f := l.front(t, Config{Pick: to(serverIP + ":5000")})
	l.client.Do(t, func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_UDP)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		// Source port 0, port 5000, 9 bytes, no checksum.
		return unix.Sendto(fd, []byte{0, 0, 5000 >> 8, 5000 & 0xff, 0, 9, 0, 0, 'x'}, 0,
			&unix.SockaddrInet4{Addr: netip.MustParseAddr(proxyIP).As4()})
	})
	testwait.Until(t, "dropped", func() bool { return counter(f.handler.meters.drops[datagram.DropPortZero]) == 1 })
	if n := f.Sessions(); n != 0 {
		t.Errorf("%d sessions", n)
	}
}

func counter(c prometheus.Metric) float64 {
	var m dto.Metric
	if err := c.Write(&m); err != nil {
		return -1
	}
	return m.GetCounter().GetValue()
}
