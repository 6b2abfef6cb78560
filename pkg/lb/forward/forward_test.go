package forward

import (
	"bufio"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/vishvananda/netlink"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
	core "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/tinkerbell/stack/internal/testwait"
	"github.com/tinkerbell/stack/pkg/lb/service"
)

// inside says that this process has a network namespace of its own. The manager's goroutines are on threads of all
// kinds, so that the whole process has to be in one.
const inside = "STACK_LB_TEST_NAMESPACE"

func TestMain(m *testing.M) {
	if os.Getenv(inside) != "" {
		if err := prepare(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		goleak.VerifyTestMain(m)
		return
	}
	if os.Geteuid() != 0 {
		fmt.Println("left out: a network namespace needs root")
		return
	}
	again := exec.Command("/proc/self/exe", os.Args[1:]...)
	again.Env = append(os.Environ(), inside+"=1")
	again.Stdin, again.Stdout, again.Stderr = os.Stdin, os.Stdout, os.Stderr
	again.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET}
	if err := again.Run(); err != nil {
		os.Exit(1)
	}
}

// The node has these addresses; those of the Services are on the same link.
var (
	vip, vip6 = "192.0.2.10", "2001:db8::10"
	pods      = []string{"10.244.0.1", "10.244.0.2", "fd00:244::1", "fd00:244::2"}
)

func prepare() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return err
	}
	for _, each := range append([]string{"192.0.2.1/24", "2001:db8::1/64", "192.0.2.9", "2001:db8::9"}, pods...) {
		if err := address(each, true); err != nil {
			return err
		}
	}
	return nil
}

// address puts an address on the link, or removes it.
func address(text string, there bool) error {
	link, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	if !strings.Contains(text, "/") {
		text += map[bool]string{true: "/128", false: "/32"}[strings.Contains(text, ":")]
	}
	a, err := netlink.ParseAddr(text)
	if err != nil {
		return err
	}
	if a.IP.To4() == nil {
		a.Flags = unix.IFA_F_NODAD
	}
	if !there {
		return netlink.AddrDel(link, a)
	}
	if err := netlink.AddrReplace(link, a); err != nil {
		return err
	}
	for range 1000 { // the kernel adds the route of an IPv6 address a moment later
		if _, err = netlink.RouteGet(a.IP); err == nil {
			break
		}
		time.Sleep(time.Millisecond)
	}
	return err
}

// pod answers TCP and UDP at an address with its name and what it got.
func pod(t *testing.T, ip string, port int) {
	t.Helper()
	at := netip.AddrPortFrom(netip.MustParseAddr(ip), uint16(port)).String()
	listener, err := net.Listen("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	packets, err := net.ListenPacket("udp", at)
	if err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			running.Go(func() {
				defer conn.Close()
				lines := bufio.NewReader(conn)
				for {
					line, err := lines.ReadString('\n')
					if err != nil {
						return
					}
					fmt.Fprintf(conn, "%s %s", ip, line)
				}
			})
		}
	})
	running.Go(func() {
		b := make([]byte, 2048)
		for {
			n, from, err := packets.ReadFrom(b)
			if err != nil {
				return
			}
			_, _ = packets.WriteTo([]byte(ip+" "+string(b[:n])), from)
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		_ = packets.Close()
		running.Wait()
	})
}

// site is a manager with the Services that it knows of.
type site struct {
	*Manager
	t        *testing.T
	registry *prometheus.Registry
	mu       sync.Mutex
	services []*core.Service
	slices   map[string][]*discovery.EndpointSlice
	changed  []netip.Addr
}

func newSite(t *testing.T, change ...func(*Options)) *site {
	t.Helper()
	s := &site{
		t: t, registry: prometheus.NewRegistry(), slices: map[string][]*discovery.EndpointSlice{},
	}
	o := Options{Logger: slog.New(slog.DiscardHandler), Registerer: s.registry, Changed: func(ip netip.Addr) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.changed = append(s.changed, ip)
	}}
	for _, f := range change {
		f(&o)
	}
	s.Manager = New(o)
	t.Cleanup(s.Close)
	for _, each := range []string{vip, vip6} {
		if err := address(each, true); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// set gives the manager the Services as they are.
func (s *site) set() {
	s.Set(State{
		Plan: service.Make(s.services, service.Options{Class: "c", Mode: service.Proxy}), Node: "n1",
		Slices: func(of *core.Service) []*discovery.EndpointSlice {
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.slices[of.Name]
		},
	})
}

// web is a Service with the ports 80 of TCP and UDP, at both addresses.
func (s *site) web(change ...func(*core.Service)) *core.Service {
	class := "c"
	web := &core.Service{
		ObjectMeta: meta.ObjectMeta{
			Namespace: "n", Name: "web", Annotations: map[string]string{service.AddressesAnnotation: vip + "," + vip6},
		},
		Spec: core.ServiceSpec{
			Type: core.ServiceTypeLoadBalancer, LoadBalancerClass: &class,
			IPFamilies: []core.IPFamily{core.IPv4Protocol, core.IPv6Protocol},
			Ports: []core.ServicePort{
				{Name: "stream", Port: 80, Protocol: core.ProtocolTCP}, {Name: "datagrams", Port: 80, Protocol: core.ProtocolUDP},
			},
		},
	}
	for _, f := range change {
		f(web)
	}
	s.services = slices.DeleteFunc(s.services, func(c *core.Service) bool { return c.Name == web.Name })
	s.services = append(s.services, web)
	return web
}

// endpoints are those of a Service, all ready, at port 8080.
func (s *site) endpoints(name string, ips ...string) {
	s.mu.Lock()
	s.slices[name] = slicesOf(8080, ips...)
	s.mu.Unlock()
	s.Refresh(types.NamespacedName{Namespace: "n", Name: name})
}

func slicesOf(port int32, ips ...string) []*discovery.EndpointSlice {
	tcp, udp := core.ProtocolTCP, core.ProtocolUDP
	stream, datagrams := "stream", "datagrams"
	ports := []discovery.EndpointPort{
		{Name: &stream, Port: &port, Protocol: &tcp}, {Name: &datagrams, Port: &port, Protocol: &udp},
	}
	four := &discovery.EndpointSlice{AddressType: discovery.AddressTypeIPv4, Ports: ports}
	six := &discovery.EndpointSlice{AddressType: discovery.AddressTypeIPv6, Ports: ports}
	for _, ip := range ips {
		slice := four
		if strings.Contains(ip, ":") {
			slice = six
		}
		node := "n1"
		slice.Endpoints = append(slice.Endpoints, discovery.Endpoint{Addresses: []string{ip}, NodeName: &node})
	}
	return []*discovery.EndpointSlice{four, six}
}

// client is a connection or a socket that asks one address again and again.
type client struct{ net.Conn }

func dial(network, ip, from string) (client, error) {
	d := net.Dialer{Timeout: 10 * time.Second}
	if from != "" {
		ip := net.ParseIP(from)
		d.LocalAddr = &net.TCPAddr{IP: ip}
		if network == "udp" {
			d.LocalAddr = &net.UDPAddr{IP: ip}
		}
	}
	conn, err := d.Dial(network, net.JoinHostPort(ip, "80"))
	return client{conn}, err
}

// ask sends a line and returns who answered.
func (c client) ask() (pod string, err error) {
	if _, err := io.WriteString(c, "hello\n"); err != nil {
		return "", err
	}
	_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
	b := make([]byte, 100)
	n, err := c.Read(b)
	pod, _, _ = strings.Cut(string(b[:n]), " ")
	return pod, err
}

// once asks with a new connection or socket.
func once(network, ip, from string) (string, error) {
	c, err := dial(network, ip, from)
	if err != nil {
		return "", err
	}
	defer c.Close()
	return c.ask()
}

// answers waits until an address answers by one of some pods.
func answers(t *testing.T, network, ip string, want ...string) {
	t.Helper()
	testwait.Success(t, fmt.Sprintf("%s %s answers by %v", network, ip, want), func() error {
		got, err := once(network, ip, "")
		if err == nil && !slices.Contains(want, got) {
			return fmt.Errorf("%q answered", got)
		}
		return err
	})
}

// both are the addresses with the pods of their family.
var both = map[string][]string{vip: pods[:2], vip6: pods[2:]}
