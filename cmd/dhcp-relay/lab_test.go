package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/mdlayher/packet"
	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/internal/nstest"
	"github.com/tinkerbell/stack/internal/testwait"
	"github.com/tinkerbell/stack/pkg/frame"
)

// The test binary is the relay too: tests start it in a namespace with a pod's capabilities.
const (
	actAsRelay  = "STACK_TEST_RELAY"
	actConfined = "STACK_TEST_CONFINED" // a capability mask in hex: give up the rest, then become the relay
	actLimits   = "STACK_TEST_LIMITS"   // CLIENT_RATE and DEAD_AFTER
)

func TestMain(m *testing.M) {
	if mask := os.Getenv(actConfined); mask != "" {
		fmt.Fprintln(os.Stderr, confine(mask))
		os.Exit(1)
	}
	if text := os.Getenv(actLimits); text != "" {
		if _, err := fmt.Sscan(text, &limits.ClientRate, &limits.DeadAfter); err != nil {
			panic(err)
		}
	}
	if os.Getenv(actAsRelay) != "" {
		os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}

// confine does what a container runtime does to a container of uid 0 with "drop: ALL" and some capabilities added.
func confine(hex string) error {
	runtime.LockOSThread()
	var mask uint32
	if _, err := fmt.Sscanf(hex, "%x", &mask); err != nil {
		return err
	}
	for c := uintptr(0); c <= unix.CAP_LAST_CAP; c++ {
		if mask&(1<<c) == 0 || c > 31 {
			_ = unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0)
		}
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	data := [2]unix.CapUserData{{Effective: mask, Permitted: mask, Inheritable: mask}}
	if err := unix.Capset(&header, &data[0]); err != nil {
		return err
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	if err := os.Unsetenv(actConfined); err != nil {
		return err
	}
	return syscall.Exec("/proc/self/exe", os.Args, os.Environ())
}

// The LAN of a machine, a pod with a leg on it, and a server that the pod reaches.
var (
	podIP     = netip.MustParseAddr("10.244.0.10")
	serverIP  = netip.MustParseAddr("10.244.0.11")
	serviceIP = netip.MustParseAddr("192.0.2.2")
	clientIP  = netip.MustParseAddr("192.0.2.50")
	clientMAC = net.HardwareAddr{0x02, 0, 0, 0, 0, 0x50}
)

type lab struct {
	client, pod, server *nstest.NS
	lan                 *packet.Conn
	smee                *net.UDPConn
}

// rawSocket opens a packet socket on a link of a network namespace, for frames of an EtherType, until the test ends.
func rawSocket(t *testing.T, ns *nstest.NS, link string, etherType int) *packet.Conn {
	t.Helper()
	var conn *packet.Conn
	ns.Do(t, func() error {
		on, err := net.InterfaceByName(link)
		if err != nil {
			return err
		}
		conn, err = packet.Listen(on, packet.Raw, etherType, nil)
		return err
	})
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func newLab(t *testing.T) *lab {
	t.Helper()
	l := &lab{client: nstest.New(t), pod: nstest.New(t), server: nstest.New(t)}
	nstest.Veth(t, l.pod, "macvlan0", l.client, "lan0")
	nstest.Veth(t, l.pod, "eth0", l.server, "eth0")
	l.pod.Addr(t, "eth0", podIP.String()+"/24")
	l.server.Addr(t, "eth0", serverIP.String()+"/24")
	l.lan = rawSocket(t, l.client, "lan0", unix.ETH_P_IP)
	l.smee = l.listen(t, l.server, netip.AddrPortFrom(serverIP, 67))
	return l
}

func (l *lab) listen(t *testing.T, ns *nstest.NS, at netip.AddrPort) *net.UDPConn {
	t.Helper()
	var conn *net.UDPConn
	ns.Do(t, func() (err error) {
		conn, err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(at))
		return err
	})
	t.Cleanup(func() { conn.Close() })
	return conn
}

// process is a relay under test.
type process struct {
	*exec.Cmd
	log  *lockedBuffer
	http *http.Client
	done chan struct{}
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// start runs the relay in the pod's namespace until the test ends. Arguments with "=" are variables, CLIENT_RATE and
// DEAD_AFTER limits.
func (l *lab) start(t *testing.T, env ...string) *process {
	t.Helper()
	return l.startWith(t, func(*exec.Cmd) {}, env...)
}

func (l *lab) startWith(t *testing.T, change func(*exec.Cmd), env ...string) *process {
	t.Helper()
	p := &process{Cmd: exec.Command("/proc/self/exe"), log: &lockedBuffer{}, done: make(chan struct{})}
	p.Env = append(os.Environ(), actAsRelay+"=1",
		"DHCP_RELAY_ADMIN_ADDRESS=127.0.0.1:9067")
	if !slices.ContainsFunc(env, func(each string) bool { return strings.HasPrefix(each, "SERVERS=") || each == "-id" }) {
		p.Env = append(p.Env, "DHCP_RELAY_SERVERS="+serverIP.String())
	}
	rate, dead := "0", "0" // the constants
	for _, each := range env {
		switch name, value, found := strings.Cut(each, "="); {
		case name == "CLIENT_RATE":
			rate = value
		case name == "DEAD_AFTER":
			dead = value
		case found:
			p.Env = append(p.Env, "DHCP_RELAY_"+each)
		default:
			p.Args = append(p.Args, each)
		}
	}
	p.Env = append(p.Env, actLimits+"="+rate+" "+dead)
	p.Stderr = p.log
	p.SysProcAttr = &syscall.SysProcAttr{}
	change(p.Cmd)
	l.pod.Do(t, p.Start)
	go func() { _ = p.Wait(); close(p.done) }()
	p.http = &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, addr string) (conn net.Conn, err error) {
			err = l.pod.Try(func() error {
				conn, err = (&net.Dialer{}).DialContext(ctx, network, addr)
				return err
			})
			return conn, err
		},
	}}
	t.Cleanup(func() {
		_ = p.Process.Signal(syscall.SIGTERM)
		select {
		case <-p.done:
		case <-time.After(10 * time.Second):
			_ = p.Process.Kill()
			<-p.done
			t.Error("the relay did not end within 10 s of SIGTERM")
		}
		if strings.Contains(p.log.String(), "DATA RACE") {
			t.Error("data race in the relay")
		}
		if t.Failed() {
			t.Logf("relay's log:\n%s", p.log)
		}
	})
	return p
}

// page fetches a page of the admin port.
func (p *process) page(path string) (int, string) {
	response, err := p.http.Get("http://127.0.0.1:9067" + path)
	if err != nil {
		return 0, err.Error()
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return 0, err.Error()
	}
	return response.StatusCode, string(body)
}

// patience is how long a test waits for what must happen.
const patience = 20 * time.Second

func (p *process) waitReady(t *testing.T) {
	t.Helper()
	testwait.Until(t, "the relay is ready", func() bool {
		select {
		case <-p.done:
			t.Fatalf("the relay ended: %v", p.ProcessState)
		default:
		}
		code, _ := p.page("/readyz")
		return code == 200
	})
}

// wantMetric waits until the metrics page has a line.
func (p *process) wantMetric(t *testing.T, line string) {
	t.Helper()
	testwait.Until(t, "metric "+line, func() bool {
		_, body := p.page("/metrics")
		return strings.Contains(body, "\n"+line+"\n")
	})
}

// metric is the value of a metric with its labels as they stand, -1 where there is none.
func (p *process) metric(name string) float64 {
	_, body := p.page("/metrics")
	_, after, found := strings.Cut(body, "\n"+name+" ")
	if !found {
		return -1
	}
	text, _, _ := strings.Cut(after, "\n")
	value, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return -1
	}
	return value
}

// broadcast puts a DHCP message on the LAN as a client without address does.
func (l *lab) broadcast(t *testing.T, payload []byte) {
	t.Helper()
	l.transmit(t, frame.Header{DstMAC: frame.Broadcast, Dst: [4]byte{255, 255, 255, 255}}, payload)
}

func (l *lab) transmit(t *testing.T, h frame.Header, payload []byte) {
	t.Helper()
	h.SrcMAC = frame.MAC(clientMAC)
	if h.SrcPort == 0 {
		h.SrcPort = 68
	}
	if h.DstPort == 0 {
		h.DstPort = 67
	}
	b := append(make([]byte, frame.HeaderLen), payload...)
	h.Put(b)
	if _, err := l.lan.WriteTo(b, &packet.Addr{HardwareAddr: h.DstMAC[:]}); err != nil {
		t.Fatal(err)
	}
}

// hear reads the next UDP datagram to port 68 on the LAN.
func (l *lab) hear(t *testing.T) frame.Datagram {
	t.Helper()
	_ = l.lan.SetReadDeadline(time.Now().Add(patience))
	b := make([]byte, 4096)
	for {
		n, _, err := l.lan.ReadFrom(b)
		if err != nil {
			t.Fatalf("heard nothing on the LAN: %v", err)
		}
		if datagram, fault := frame.Parse(b[:n], frame.Verify); fault == frame.OK && datagram.Dst.Port() == 68 {
			return datagram
		}
	}
}

// quiet asserts that nothing comes to port 68 of the LAN for a moment.
func (l *lab) quiet(t *testing.T) {
	t.Helper()
	_ = l.lan.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
	b := make([]byte, 4096)
	for {
		n, _, err := l.lan.ReadFrom(b)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		if datagram, fault := frame.Parse(b[:n], frame.Verify); fault == frame.OK && datagram.Dst.Port() == 68 {
			t.Fatalf("heard %v to %v, want silence", datagram.Src, datagram.Dst)
		}
	}
}

// receive reads the next datagram of a server or a router.
func receive(t *testing.T, conn *net.UDPConn) ([]byte, netip.AddrPort) {
	t.Helper()
	_ = conn.SetReadDeadline(time.Now().Add(patience))
	b := make([]byte, 4096)
	n, from, err := conn.ReadFromUDPAddrPort(b)
	if err != nil {
		t.Fatalf("received nothing: %v", err)
	}
	return b[:n], from
}

// silent asserts that a server or a router receives nothing for a moment.
func silent(t *testing.T, conn *net.UDPConn) {
	t.Helper()
	_ = conn.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
	b := make([]byte, 4096)
	if n, from, err := conn.ReadFromUDPAddrPort(b); err == nil {
		t.Fatalf("received %d bytes from %v, want nothing", n, from)
	}
}

func send(t *testing.T, conn *net.UDPConn, payload []byte, to netip.AddrPort) {
	t.Helper()
	if _, err := conn.WriteToUDPAddrPort(payload, to); err != nil {
		t.Fatal(err)
	}
}

// discover is a client's first message.
func discover(t *testing.T, modifiers ...dhcpv4.Modifier) *dhcpv4.DHCPv4 {
	t.Helper()
	m, err := dhcpv4.NewDiscovery(clientMAC, append([]dhcpv4.Modifier{dhcpv4.WithBroadcast(false)}, modifiers...)...)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// answer is a server's reply to what it received.
func answer(t *testing.T, request []byte, kind dhcpv4.MessageType, modifiers ...dhcpv4.Modifier) []byte {
	t.Helper()
	parsed, err := dhcpv4.FromBytes(request)
	if err != nil {
		t.Fatal(err)
	}
	reply, err := dhcpv4.NewReplyFromRequest(parsed, append([]dhcpv4.Modifier{
		dhcpv4.WithMessageType(kind),
		dhcpv4.WithServerIP(serverIP.AsSlice()),
		dhcpv4.WithOption(dhcpv4.OptServerIdentifier(serviceIP.AsSlice())),
	}, modifiers...)...)
	if err != nil {
		t.Fatal(err)
	}
	return reply.ToBytes()
}

// deadline has the next reads of a socket end when patience does.
func deadline(t *testing.T, conn interface{ SetReadDeadline(time.Time) error }) {
	t.Helper()
	if err := conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
}
