package syslog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"go.uber.org/goleak"

	"github.com/tinkerbell/stack/internal/nstest"
	"github.com/tinkerbell/stack/internal/testwait"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	clientIP = "192.0.2.1"
	proxyIP  = "192.0.2.2"
	serverIP = "198.51.100.2"
	client6  = "2001:db8:1::1"
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
		{l.client, "c0", clientIP + "/24"}, {l.client, "c0", "192.0.2.3/24"}, {l.client, "c0", client6 + "/64"},
		{l.proxy, "p0", proxyIP + "/24"}, {l.proxy, "p0", proxy6 + "/64"},
		{l.proxy, "p1", "198.51.100.1/24"}, {l.proxy, "p1", "2001:db8:2::1/64"},
		{l.server, "s0", serverIP + "/24"}, {l.server, "s0", server6 + "/64"},
	} {
		a.ns.Addr(t, a.link, a.cidr)
	}
	l.server.Route(t, "default", "198.51.100.1")
	return l
}

func to(endpoint string) func(netip.Addr) (netip.AddrPort, error) {
	at := netip.MustParseAddrPort(endpoint)
	return func(netip.Addr) (netip.AddrPort, error) { return at, nil }
}

func (l *lab) front(t testing.TB, c Config) *Front {
	t.Helper()
	c.Route = "syslog"
	if !c.Listen.IsValid() {
		c.Listen = netip.AddrPortFrom(netip.Addr{}, 514)
	}
	if c.Metrics == nil {
		c.Metrics = NewMetrics(prometheus.NewRegistry())
	}
	var f *Front
	l.proxy.Do(t, func() (err error) {
		f, err = Listen(c)
		return err
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- f.Serve(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	return f
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

func receive(t testing.TB, conn *net.UDPConn) (string, netip.Addr) {
	t.Helper()
	buf := make([]byte, 65536)
	_ = conn.SetReadDeadline(time.Now().Add(5 * time.Second))
	n, from, err := conn.ReadFromUDPAddrPort(buf)
	if err != nil {
		t.Fatal(err)
	}
	return string(buf[:n]), from.Addr().Unmap()
}

func send(t testing.TB, conn *net.UDPConn, line, at string) {
	t.Helper()
	if _, err := conn.WriteToUDPAddrPort([]byte(line), netip.MustParseAddrPort(at)); err != nil {
		t.Fatal(err)
	}
}

func TestBothFamilies(t *testing.T) {
	const in = "<13>Nov 20 10:00:00 node1 app: hello"
	for _, tt := range []struct{ from, ask, at, wantLine, wantAddress string }{
		{clientIP, proxyIP, serverIP, "<13>1 - 192.0.2.1 app - - - hello", "198.51.100.1"},
		{client6, proxy6, server6, "<13>1 - 2001:db8:1::1 app - - - hello", "2001:db8:2::1"},
		{client6, proxy6, serverIP, "<13>1 - 2001:db8:1::1 app - - - hello", "198.51.100.1"},
	} {
		t.Run(fmt.Sprintf("from %s to %s", tt.from, tt.at), func(t *testing.T) {
			l := newLab(t)
			server := listen(t, l.server, netip.AddrPortFrom(netip.MustParseAddr(tt.at), 514).String())
			f := l.front(t, Config{Pick: to(server.LocalAddr().String())})
			conn := listen(t, l.client, netip.AddrPortFrom(netip.MustParseAddr(tt.from), 0).String())
			send(t, conn, in, netip.AddrPortFrom(netip.MustParseAddr(tt.ask), 514).String())
			line, from := receive(t, server)
			if line != tt.wantLine || from.String() != tt.wantAddress {
				t.Errorf("got %q from %s, want %q from %s", line, from, tt.wantLine, tt.wantAddress)
			}
			if err := f.Ready(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestLargestAndEmpty(t *testing.T) {
	l := newLab(t)
	server := listen(t, l.server, serverIP+":514")
	f := l.front(t, Config{Pick: to(serverIP + ":514")})
	conn := listen(t, l.client, clientIP+":0")
	send(t, conn, strings.Repeat("x", 65507), proxyIP+":514")
	if line, _ := receive(t, server); len(line) != 65507 || !strings.HasPrefix(line, "<13>1 - 192.0.2.1 - - - - xxx") {
		t.Errorf("got %d bytes, %.40q...", len(line), line)
	}
	send(t, conn, "", proxyIP+":514")
	testwait.Until(t, "the empty one dropped", func() bool { return f.drops(DropEmpty) == 1 })
}

func TestTroubleIsCounted(t *testing.T) {
	l := newLab(t)
	fail := errors.New("no such host")
	f := l.front(t, Config{Pick: func(c netip.Addr) (netip.AddrPort, error) {
		if c.String() == clientIP {
			return netip.AddrPort{}, fail
		}
		return netip.MustParseAddrPort(proxyIP + ":514"), nil
	}})
	send(t, listen(t, l.client, clientIP+":0"), "x", proxyIP+":514")
	send(t, listen(t, l.client, "192.0.2.3:0"), "x", proxyIP+":514")
	testwait.Until(t, "no endpoint, loop", func() bool { return f.drops(DropNoEndpoint) == 1 && f.drops(DropLoop) == 1 })
}

// Two routes whose backends resolve to each other: a message goes round once at most.
func TestLoopThroughAnotherRoute(t *testing.T) {
	l := newLab(t)
	there := l.front(t, Config{Pick: to(proxyIP + ":515")})
	back := l.front(t, Config{Listen: netip.MustParseAddrPort("0.0.0.0:515"), Pick: to(proxyIP + ":514")})
	send(t, listen(t, l.client, clientIP+":0"), "<13>hello", proxyIP+":514")
	testwait.Until(t, "the loop noticed", func() bool { return there.drops(DropLoop)+back.drops(DropLoop) == 1 })
	passed := func() float64 {
		return counter(there.worker.meters.datagrams) + counter(back.worker.meters.datagrams)
	}
	testwait.Until(t, "one datagram passed on", func() bool { return passed() == 1 })
}

func TestRefusalIsCounted(t *testing.T) {
	l := newLab(t)
	reported := make(chan string, 100)
	f := l.front(t, Config{
		Pick:   to(serverIP + ":514"), // nobody there
		Report: func(at netip.AddrPort, err error) { reported <- fmt.Sprint(at, " ", err) },
	})
	conn := listen(t, l.client, clientIP+":0")
	testwait.Until(t, "refusals", func() bool {
		send(t, conn, "x", proxyIP+":514")
		return f.drops(DropRefused) > 0
	})
	if got := <-reported; !strings.HasPrefix(got, serverIP+":514 endpoint refused") {
		t.Errorf("reported %q", got)
	}
	// The pending error costs no later message.
	if got := f.drops(DropUnsent); got != 0 {
		t.Errorf("%d datagrams unsent", got)
	}
	server := listen(t, l.server, serverIP+":514")
	send(t, conn, "<13>at last", proxyIP+":514")
	if line, _ := receive(t, server); !strings.HasSuffix(line, "at last") && !strings.HasSuffix(line, " x") {
		t.Errorf("got %q", line)
	}
}

func TestOverflowIsCounted(t *testing.T) {
	l := newLab(t)
	server := listen(t, l.server, serverIP+":514")
	_ = server.SetReadBuffer(64 << 20)
	hold := make(chan struct{})
	f := l.front(t, Config{Pick: func(netip.Addr) (netip.AddrPort, error) {
		<-hold
		return netip.MustParseAddrPort(serverIP + ":514"), nil
	}})
	conn := listen(t, l.client, clientIP+":0")
	const sent = 12_000 // of 1,400 bytes: more than any receive buffer that we ask for
	for range sent {
		send(t, conn, strings.Repeat("x", 1400), proxyIP+":514")
	}
	close(hold)
	m := f.worker.meters
	testwait.Until(t, "what was held passed", func() bool {
		before := counter(m.datagrams)
		time.Sleep(20 * time.Millisecond)
		return before > 0 && counter(m.datagrams) == before
	})
	send(t, conn, "the next one tells of the loss", proxyIP+":514")
	testwait.Until(t, "every datagram accounted for", func() bool {
		return counter(m.datagrams)+counter(m.drops[DropOverflow])+counter(m.drops[DropUnsent]) == sent+1
	})
	if counter(m.drops[DropOverflow]) == 0 {
		t.Error("nothing was lost: the test proves nothing")
	}
}

func TestTakenPort(t *testing.T) {
	l := newLab(t)
	l.front(t, Config{Pick: to(serverIP + ":514")})
	err := l.proxy.Try(func() error {
		_, err := Listen(Config{Listen: netip.AddrPortFrom(netip.Addr{}, 514), Pick: to(serverIP + ":514")})
		return err
	})
	if !errors.Is(err, syscall.EADDRINUSE) || !strings.Contains(err.Error(), "port 514") {
		t.Errorf("got error %v, want one that names port 514", err)
	}
}

func TestDrainPassesOnWhatHasArrived(t *testing.T) {
	l := newLab(t)
	server := listen(t, l.server, serverIP+":514")
	var f *Front
	l.proxy.Do(t, func() (err error) {
		f, err = Listen(Config{
			Listen:       netip.AddrPortFrom(netip.Addr{}, 514),
			Pick:         to(serverIP + ":514"),
			DrainTimeout: time.Second,
		})
		return err
	})
	conn := listen(t, l.client, clientIP+":0")
	for i := range 200 {
		send(t, conn, fmt.Sprint(i), proxyIP+":514")
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel() // before it has begun
	if err := f.Serve(ctx); err != nil {
		t.Fatal(err)
	}
	for i := range 200 {
		if line, _ := receive(t, server); !strings.HasSuffix(line, fmt.Sprintf(" - - %d", i)) {
			t.Fatalf("got %q, want %d", line, i)
		}
	}
}

func TestLogger(t *testing.T) {
	path, err := exec.LookPath("logger")
	if err != nil {
		t.Skip("needs logger (bsdutils)")
	}
	l := newLab(t)
	server := listen(t, l.server, serverIP+":514")
	l.front(t, Config{Pick: to(serverIP + ":514")})
	for _, form := range [][]string{{"--rfc3164"}, {"--rfc5424"}, {"--rfc5424=notime"}, {"--rfc5424=notq,nohost"}} {
		args := append([]string{"--udp", "--server", proxyIP, "--port", "514", "--tag", "hook", "--priority", "local0.warning"}, form...)
		l.client.Do(t, func() error {
			cmd := exec.Command(path, append(args, "it works")...)
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			if err := cmd.Run(); err != nil {
				return fmt.Errorf("%w: %s", err, stderr.String())
			}
			return nil
		})
		line, _ := receive(t, server)
		host, ok := smeeReads([]byte(line))
		if !ok || host != clientIP || !strings.HasPrefix(line, "<132>1 ") || !strings.Contains(line, " hook ") ||
			!strings.HasSuffix(line, "it works") {
			t.Errorf("%v: got %q", form, line)
		}
	}
}

func counter(c prometheus.Metric) float64 {
	var m dto.Metric
	if err := c.Write(&m); err != nil {
		return -1
	}
	return m.GetCounter().GetValue()
}

func (f *Front) drops(d Drop) int { return int(counter(f.worker.meters.drops[d])) }
