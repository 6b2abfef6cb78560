package forward

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pires/go-proxyproto"
	"github.com/prometheus/client_golang/prometheus/testutil"
	core "k8s.io/api/core/v1"

	"github.com/tinkerbell/stack/internal/testwait"
	"github.com/tinkerbell/stack/pkg/lb/reason"
	"github.com/tinkerbell/stack/pkg/lb/service"
)

// A Service's life: TCP and UDP, IPv4 and IPv6. What is open towards an endpoint that stays goes on whatever changes, and
// datagrams leave an endpoint that is gone.
func TestLife(t *testing.T) {
	s := newSite(t)
	for _, ip := range pods {
		pod(t, ip, 8080)
	}
	s.web()
	s.set()
	for ip := range both {
		if _, err := once("tcp", ip, ""); !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, io.EOF) {
			t.Errorf("%s: without an endpoint: %v", ip, err)
		}
	}
	s.endpoints("web", pods[0], pods[2])
	var kept []client
	for ip, of := range both {
		for _, network := range []string{"tcp", "udp"} {
			answers(t, network, ip, of[0])
			c, err := dial(network, ip, "")
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if got, err := c.ask(); err != nil || got != of[0] {
				t.Fatalf("%s %s: %q, %v", network, ip, got, err)
			}
			kept = append(kept, c)
		}
	}
	same := func(when string) {
		t.Helper()
		for _, c := range kept {
			got, err := c.ask()
			if want := both[ipOf(c.RemoteAddr())][0]; err != nil || got != want {
				t.Errorf("%s: %s %s: %q answered, %v", when, c.RemoteAddr().Network(), c.RemoteAddr(), got, err)
			}
		}
	}
	s.endpoints("web", pods...)
	for ip, of := range both {
		for _, network := range []string{"tcp", "udp"} {
			answers(t, network, ip, of[1])
		}
	}
	same("an endpoint came")
	s.web(func(s *core.Service) {
		s.Spec.LoadBalancerSourceRanges = []string{"192.0.2.0/24", "2001:db8::/64"}
		s.Spec.SessionAffinity = core.ServiceAffinityClientIP
	})
	s.set()
	same("affinity and sources came")
	s.endpoints("web", pods[1], pods[3])
	for i, c := range kept {
		of := both[ipOf(c.RemoteAddr())]
		if c.RemoteAddr().Network() == "udp" {
			testwait.Success(t, "datagrams go elsewhere", func() error {
				got, err := c.ask()
				if err == nil && got != of[1] {
					err = errors.New(got)
				}
				return err
			})
		} else if got, err := c.ask(); err != nil || got != of[0] {
			t.Errorf("connection %d to an endpoint that goes: %q, %v", i, got, err) // until that ends it
		}
	}
	if n := testutil.CollectAndCount(s.registry, "stack_proxy_tcp_open_connections"); n != 2 {
		t.Errorf("%d TCP listeners are counted, want 2", n)
	}
	s.services = nil
	s.set()
	for ip := range both {
		testwait.Success(t, ip+" refuses", func() error {
			c, err := dial("tcp", ip, "")
			if err == nil {
				_ = c.Close()
				return errors.New("a listener that was closed has taken a connection")
			}
			if !errors.Is(err, syscall.ECONNREFUSED) {
				return err
			}
			return nil
		})
	}
	for _, c := range kept {
		if _, err := c.ask(); err == nil {
			t.Errorf("%s %s still answers", c.RemoteAddr().Network(), c.RemoteAddr())
		}
	}
	testwait.Success(t, "nothing is counted any more", func() error {
		if n, err := testutil.GatherAndCount(s.registry); err != nil || n > 0 {
			return errors.Join(err, errors.New("something is counted"))
		}
		return nil
	})
}

func ipOf(a net.Addr) string { return netip.MustParseAddrPort(a.String()).Addr().Unmap().String() }

// Listeners are open before the address is there. Cut ends what is open, and not the listeners.
func TestTakeover(t *testing.T) {
	s := newSite(t)
	pod(t, pods[0], 8080)
	pod(t, pods[2], 8080)
	for _, ip := range []string{vip, vip6} {
		if err := address(ip, false); err != nil {
			t.Fatal(err)
		}
	}
	s.web()
	s.endpoints("web", pods[0], pods[2])
	s.set()
	if why := s.Fault(netip.MustParseAddr(vip)); why != nil {
		t.Fatal(why)
	}
	for ip, of := range both {
		if err := address(ip, true); err != nil {
			t.Fatal(err)
		}
		answers(t, "tcp", ip, of[0])
		for range 2 {
			var open []client
			for _, network := range []string{"tcp", "udp"} {
				c, err := dial(network, ip, "")
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				if got, err := c.ask(); err != nil || got != of[0] {
					t.Errorf("%s %s: %q, %v", network, ip, got, err)
				}
				open = append(open, c)
			}
			s.Cut(netip.MustParseAddr(ip))
			if _, err := open[0].ask(); err == nil {
				t.Error("the connection goes on behind Cut")
			}
			answers(t, "tcp", ip, of[0])
			got, err := open[1].ask()
			if errors.Is(err, os.ErrDeadlineExceeded) { // it came while its session ended
				got, err = open[1].ask()
			}
			if err != nil || got != of[0] { // as a new session
				t.Errorf("udp %s: %q, %v", ip, got, err)
			}
		}
	}
}

// What a Service asks for beyond its ports, and asks for anew.
func TestOptions(t *testing.T) {
	s := newSite(t)
	for _, ip := range pods {
		pod(t, ip, 8080)
	}
	s.web(func(s *core.Service) { s.Spec.SessionAffinity = core.ServiceAffinityClientIP })
	s.endpoints("web", pods...)
	s.set()
	for ip, of := range both {
		for _, network := range []string{"tcp", "udp"} {
			answers(t, network, ip, of...)
			first, _ := once(network, ip, "")
			for range 10 {
				if got, err := once(network, ip, ""); got != first {
					t.Errorf("affinity: %s %s: %q, then %q, %v", network, ip, first, got, err)
				}
			}
		}
	}
	s.web(func(s *core.Service) { s.Spec.LoadBalancerSourceRanges = []string{"192.0.2.9/32"} })
	s.set()
	if got, err := once("tcp", vip, "192.0.2.9"); err != nil {
		t.Errorf("a client of the sources: %q, %v", got, err)
	}
	for _, from := range []string{"192.0.2.1", "2001:db8::9"} {
		to := vip
		if strings.Contains(from, ":") {
			to = vip6
		}
		if got, err := once("tcp", to, from); err == nil {
			t.Errorf("%s is in none of the sources, and %s answered", from, got)
		}
	}
	s.web()
	s.set()
	seen := map[string]bool{}
	for range 10 {
		got, err := once("tcp", vip, "192.0.2.1")
		if err != nil {
			t.Fatal(err)
		}
		seen[got] = true
	}
	if len(seen) != 2 {
		t.Errorf("without affinity %v answered", seen)
	}
}

func TestProxyHeader(t *testing.T) {
	s := newSite(t)
	listener, err := net.Listen("tcp", net.JoinHostPort(pods[0], "8080"))
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	s.web(func(s *core.Service) { s.Annotations[service.ProxyProtocolAnnotation] = "v2" })
	s.endpoints("web", pods[0])
	s.set()
	c, err := dial("tcp", vip, "192.0.2.9")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	conn, err := (&proxyproto.Listener{Listener: listener, ReadHeaderTimeout: 10 * time.Second}).Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if conn.RemoteAddr().String() != c.LocalAddr().String() || conn.LocalAddr().String() != vip+":80" {
		t.Errorf("the header says %s → %s, the client is %s", conn.RemoteAddr(), conn.LocalAddr(), c.LocalAddr())
	}
}

// A port that another program has is a fault of its address until the program lets go of it.
func TestPortInUse(t *testing.T) {
	for _, at := range []string{"0.0.0.0:80", vip + ":80", "[::]:80"} {
		for _, network := range []string{"tcp", "udp"} {
			t.Run(network+" "+at, func(t *testing.T) {
				var other io.Closer
				var err error
				only := network // IPv4 alone, or both families
				if at[0] != '[' {
					only += "4"
				}
				if network == "tcp" {
					other, err = net.Listen(only, at)
				} else {
					other, err = net.ListenPacket(only, at)
				}
				if err != nil {
					t.Fatal(err)
				}
				defer other.Close()
				s := newSite(t)
				s.web()
				s.set()
				ip := netip.MustParseAddr(vip)
				why := s.Fault(ip)
				if why == nil || why.Reason != reason.PortInUse {
					t.Fatalf("got %v", why)
				}
				if want := fmt.Sprintf("port %s %s:80 of Service n/web is taken by", network, vip); !strings.HasPrefix(why.Text, want) {
					t.Errorf("%q does not begin with %q", why.Text, want)
				}
				_ = other.Close()
				testwait.Success(t, "the port is free", func() error {
					if why := s.Fault(ip); why != nil {
						return why
					}
					return nil
				})
				s.mu.Lock()
				defer s.mu.Unlock()
				told := len(slices.DeleteFunc(s.changed, func(each netip.Addr) bool { return each != ip }))
				if told < 2 {
					t.Errorf("told %d times of %s, want when it came and when it was free", told, ip)
				}
			})
		}
	}
}

// A port goes over to another Service, and its mode to announce and back, at once.
func TestPortMoves(t *testing.T) {
	s := newSite(t)
	pod(t, pods[0], 8080)
	pod(t, pods[1], 8080)
	s.web()
	s.endpoints("web", pods[0])
	s.endpoints("other", pods[1])
	s.set()
	answers(t, "tcp", vip, pods[0])
	c, err := dial("tcp", vip, "")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.ask(); err != nil {
		t.Fatal(err)
	}
	web := s.web()
	other := web.DeepCopy()
	other.Name = "other"
	s.services = []*core.Service{other}
	s.set()
	for _, network := range []string{"tcp", "udp"} {
		answers(t, network, vip, pods[1])
	}
	if got, err := c.ask(); err == nil {
		t.Errorf("a connection of the Service before goes on: %q", got)
	}
	other.Annotations[service.ModeAnnotation] = "announce"
	s.set()
	testwait.Success(t, "no listener", func() error {
		if c, err := dial("tcp", vip, ""); err == nil {
			c.Close()
			return errors.New("connected")
		}
		return nil
	})
	delete(other.Annotations, service.ModeAnnotation)
	s.set()
	for _, network := range []string{"tcp", "udp"} {
		answers(t, network, vip, pods[1])
	}
}
