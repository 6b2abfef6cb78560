package tftp

import (
	"context"
	"net"
	"net/netip"
	"os/exec"
	"runtime"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/internal/nstest"
)

// lab is a client's, the proxy's and a server's namespace in a row.
type lab struct {
	client, proxy, server *nstest.NS
}

const (
	clientIP = "192.0.2.1"
	proxyIP  = "192.0.2.2"    // what clients ask
	serverIP = "198.51.100.2" // the endpoint
	client6  = "2001:db8:1::1"
	proxy6   = "2001:db8:1::2"
	server6  = "2001:db8:2::2"
)

func newLab(t testing.TB) *lab {
	l := &lab{client: nstest.New(t), proxy: nstest.New(t), server: nstest.New(t)}
	nstest.Veth(t, l.client, "c0", l.proxy, "p0")
	nstest.Veth(t, l.proxy, "p1", l.server, "s0")
	for _, cidr := range []string{clientIP + "/24", client6 + "/64"} {
		l.client.Addr(t, "c0", cidr)
	}
	// The proxy has an address before the asked one, which the kernel would choose by itself.
	for _, cidr := range []string{"192.0.2.200/24", proxyIP + "/24", "2001:db8:1::200/64", proxy6 + "/64"} {
		l.proxy.Addr(t, "p0", cidr)
	}
	for _, cidr := range []string{"198.51.100.1/24", "2001:db8:2::1/64"} {
		l.proxy.Addr(t, "p1", cidr)
	}
	for _, cidr := range []string{serverIP + "/24", "198.51.100.3/24", server6 + "/64"} {
		l.server.Addr(t, "s0", cidr)
	}
	return l
}

func to(endpoint string) func(netip.Addr) (netip.AddrPort, error) {
	at := netip.MustParseAddrPort(endpoint)
	return func(netip.Addr) (netip.AddrPort, error) { return at, nil }
}

// front serves a route on port 69 in the proxy's namespace for the length of the test.
func (l *lab) front(t testing.TB, c Config) *Front {
	t.Helper()
	if !c.Listen.IsValid() {
		c.Listen = netip.AddrPortFrom(netip.Addr{}, 69)
	}
	if c.Route == "" {
		c.Route = "tftp"
	}
	if c.Metrics == nil {
		c.Metrics = NewMetrics(prometheus.NewRegistry())
	}
	var f *Front
	l.proxy.Do(t, func() (err error) {
		f, err = Listen(c)
		return err
	})
	// The goroutines of Serve live outside of the namespace, but new sessions' sockets must be made inside.
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- l.proxy.Try(func() error { return f.Serve(ctx) }) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	return f
}

// at is a port of the proxy's address.
func (l *lab) at(port uint16) netip.AddrPort {
	return netip.AddrPortFrom(netip.MustParseAddr(proxyIP), port)
}

func content(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i>>8 ^ i*7)
	}
	return b
}

// udp is a client's socket.
func (l *lab) udp(t testing.TB) *net.UDPConn {
	t.Helper()
	var conn *net.UDPConn
	l.client.Do(t, func() (err error) {
		conn, err = net.ListenUDP("udp4", &net.UDPAddr{})
		return err
	})
	return conn
}

// exchange sends b, if any, and returns the next datagram.
func exchange(t testing.TB, conn *net.UDPConn, b []byte, server string) []byte {
	t.Helper()
	if b != nil {
		if _, err := conn.WriteToUDPAddrPort(b, netip.MustParseAddrPort(server)); err != nil {
			t.Fatal(err)
		}
	}
	buf := make([]byte, 65536)
	_ = conn.SetReadDeadline(time.Now().Add(5 * time.Second))
	n, err := conn.Read(buf)
	if err != nil {
		t.Fatal(err)
	}
	return buf[:n]
}

// controlled serves a front whose end the test decides.
func (l *lab) controlled(t testing.TB, c Config) (stop context.CancelFunc, done <-chan error) {
	t.Helper()
	c.Listen = netip.AddrPortFrom(netip.Addr{}, 69)
	var f *Front
	l.proxy.Do(t, func() (err error) {
		f, err = Listen(c)
		return err
	})
	ctx, cancel := context.WithCancel(context.Background())
	result := make(chan error, 1)
	go func() { result <- l.proxy.Try(func() error { return f.Serve(ctx) }) }()
	t.Cleanup(cancel)
	return cancel, result
}

func counter(c prometheus.Metric) float64 {
	var m dto.Metric
	if err := c.Write(&m); err != nil {
		return -1
	}
	return m.GetCounter().GetValue()
}

func (f *Front) drops(d Drop) int { return int(counter(f.handler.meters.drops[d])) }

// silentServer takes requests and never answers.
func (l *lab) silentServer(t testing.TB, at string) {
	t.Helper()
	l.server.Do(t, func() error {
		conn, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.MustParseAddrPort(at)))
		if err == nil {
			t.Cleanup(func() { _ = conn.Close() })
		}
		return err
	})
}

// rawSocket sends datagrams with forged sources from the client's namespace.
type rawSocket struct{ fd int }

func (l *lab) raw(t testing.TB) rawSocket {
	t.Helper()
	var s rawSocket
	l.client.Do(t, func() (err error) {
		s.fd, err = unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
		return err
	})
	t.Cleanup(func() { _ = unix.Close(s.fd) })
	return s
}

func (s rawSocket) send(t testing.TB, from, to netip.AddrPort, payload []byte) {
	t.Helper()
	if err := unix.Sendto(s.fd, ipv4(from, to, payload), 0, &unix.SockaddrInet4{Addr: to.Addr().As4()}); err != nil {
		t.Errorf("failed to send from %s: %v", from, err)
	}
}

// command runs a program to its end.
func command(args ...string) (string, error) {
	out, err := exec.Command(args[0], args[1:]...).CombinedOutput()
	return string(out), err
}

// withoutCapabilities runs f on a thread that has lost them, and that ends with f.
func withoutCapabilities(f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlock it
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var none [2]unix.CapUserData
		if err := unix.Capset(&header, &none[0]); err != nil {
			done <- err
			return
		}
		done <- f()
	}()
	return <-done
}
