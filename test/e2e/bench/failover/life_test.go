package failover

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/tinkerbell/stack/test/e2e/network"
	"github.com/tinkerbell/stack/test/e2e/progress"
)

// TestServiceLife is a Service's way from its creation to its end, by TCP and UDP, IPv4 and IPv6, in either mode: with a
// real API server, and in mode announce with a real kube-proxy.
func TestServiceLife(t *testing.T) {
	s := site(t, 1, Short...)
	n := s.nodes[0]
	pods(t, n)
	for _, mode := range []string{"announce", "proxy"} {
		t.Run(mode, func(t *testing.T) {
			l := life{t: t, s: s}
			first, second := podIP(0, 1), podIP(0, 2)
			l.must(http.MethodPost, servicesPath, l.service(mode, 8080))
			l.endpoints(first)
			l.answers(8080, first)
			l.mode(mode)
			living := l.open(8080)
			l.endpoints(first, second)
			l.answers(8080, second)
			for _, conn := range living {
				if got := ask(conn); !strings.Contains(fmt.Sprint(first), got) || got == "" {
					t.Errorf("a connection to an endpoint that stays: %q", got)
				}
			}
			l.endpoints(second)
			for range 5 {
				l.answers(8080, second)
			}
			l.must(http.MethodPatch, servicesPath+"/life", l.service(mode, 8081))
			l.answers(8081, second)
			other := map[string]string{"announce": "proxy", "proxy": "announce"}[mode]
			for _, next := range []string{other, mode} {
				l.must(http.MethodPatch, servicesPath+"/life", l.service(next, 8081))
				l.mode(next)
				l.answers(8081, second)
			}
			l.must(http.MethodDelete, servicesPath+"/life", nil)
			l.until("no address and no lease is left", func() error {
				addresses, err := n.links.AddrList(nil, netlink.FAMILY_ALL)
				leases := l.get("/apis/coordination.k8s.io/v1/namespaces/" + namespace + "/leases")
				for _, vip := range []string{VIP, VIP6} {
					if strings.Contains(fmt.Sprint(addresses), vip+"/") {
						err = errors.Join(err, errors.New(vip+" is left"))
					}
				}
				if strings.Contains(leases, `"stack-lb-`) {
					err = errors.Join(err, errors.New("a lease is left"))
				}
				return err
			})
		})
	}
}

// life is one Service on a site.
type life struct {
	t *testing.T
	s *Site
}

func (l life) must(method, path string, in any) {
	l.t.Helper()
	if err := l.s.api.do(l.t.Context(), method, path, in); err != nil {
		l.t.Fatal(err)
	}
}

func (l life) get(path string) string {
	l.t.Helper()
	r, err := http.NewRequestWithContext(l.t.Context(), http.MethodGet, "https://"+apiIP+":6443"+path, http.NoBody)
	if err != nil {
		l.t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer admin")
	response, err := l.s.api.client.Do(r)
	if err != nil {
		l.t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		l.t.Fatal(err)
	}
	return string(text)
}

func (l life) until(what string, try func() error) {
	l.t.Helper()
	defer func() {
		if l.t.Failed() {
			l.t.Log(l.get(servicesPath))
		}
	}()
	progress.Await(l.t, what, try)
}

func (life) service(mode string, port int) object {
	return object{
		"metadata": object{"name": "life", "annotations": object{
			"stack-lb.tinkerbell.org/addresses": VIP + "," + VIP6, "stack-lb.tinkerbell.org/mode": mode,
		}},
		"spec": object{
			"type": "LoadBalancer", "loadBalancerClass": "tinkerbell.org/stack-lb", "externalTrafficPolicy": "Cluster",
			"ipFamilyPolicy": "RequireDualStack", "allocateLoadBalancerNodePorts": false,
			"ports": []object{
				{"name": "stream", "port": port, "protocol": "TCP"}, {"name": "datagrams", "port": port, "protocol": "UDP"},
			},
		},
	}
}

// endpoints writes the Service's EndpointSlices; each endpoint is an address of both families.
func (l life) endpoints(pods ...[2]string) {
	l.t.Helper()
	for i, family := range []string{"IPv4", "IPv6"} {
		endpoints := []object{}
		for _, pod := range pods {
			endpoints = append(endpoints, object{
				"addresses": []string{pod[i]}, "nodeName": l.s.nodes[0].name, "conditions": object{"ready": true, "serving": true},
			})
		}
		name := "life-" + strings.ToLower(family)
		err := l.s.api.do(l.t.Context(), http.MethodPatch, slicesPath+"/"+name, object{"endpoints": endpoints})
		if err != nil {
			l.must(http.MethodPost, slicesPath, object{
				"metadata":    object{"name": name, "labels": object{"kubernetes.io/service-name": "life"}},
				"addressType": family, "endpoints": endpoints, "ports": []object{
					{"name": "stream", "port": 9090, "protocol": "TCP"}, {"name": "datagrams", "port": 9090, "protocol": "UDP"},
				},
			})
		}
	}
}

// mode waits until the status has both addresses with the mode's ipMode.
func (l life) mode(mode string) {
	l.t.Helper()
	l.until("ipMode of "+mode, func() error {
		var s struct {
			Status struct {
				LoadBalancer struct{ Ingress []struct{ IP, IPMode string } }
			}
		}
		if err := json.Unmarshal([]byte(l.get(servicesPath+"/life")), &s); err != nil {
			return err
		}
		want := map[string]string{"announce": "VIP", "proxy": "Proxy"}[mode]
		in := s.Status.LoadBalancer.Ingress
		if len(in) != 2 || in[0].IPMode != want || in[1].IPMode != want {
			return fmt.Errorf("ingress %+v", in)
		}
		return nil
	})
}

// dial connects from the client.
func (l life) dial(network, vip string, port int) (conn net.Conn, err error) {
	err = l.s.client.in(func() error {
		d := net.Dialer{Timeout: 2 * time.Second}
		conn, err = d.DialContext(l.t.Context(), network, net.JoinHostPort(vip, fmt.Sprint(port)))
		return err
	})
	return conn, err
}

// open opens a TCP connection to each address, which stays.
func (l life) open(port int) (all []net.Conn) {
	l.t.Helper()
	for _, vip := range []string{VIP, VIP6} {
		conn, err := l.dial("tcp", vip, port)
		if err != nil {
			l.t.Fatal(err)
		}
		l.t.Cleanup(func() { _ = conn.Close() })
		all = append(all, conn)
	}
	return all
}

// answers waits until an endpoint has answered by each transport and family.
func (l life) answers(port int, pod [2]string) {
	l.t.Helper()
	for i, vip := range []string{VIP, VIP6} {
		for _, network := range []string{"tcp", "udp"} {
			l.until(fmt.Sprintf("%s %s port %d answers by %s", network, vip, port, pod[i]), func() error {
				conn, err := l.dial(network, vip, port)
				if err != nil {
					return err
				}
				defer conn.Close()
				if got := ask(conn); got != pod[i] {
					return fmt.Errorf("%q answered", got)
				}
				return nil
			})
		}
	}
}

// ask returns which endpoint answers.
func ask(conn net.Conn) string {
	_ = conn.SetDeadline(time.Now().Add(2 * time.Second))
	if _, err := io.WriteString(conn, "who\n"); err != nil {
		return ""
	}
	b := make([]byte, 100)
	n, _ := conn.Read(b)
	return string(b[:n])
}

// pods gives the node's pod a second address of each family, and has each of the four answer with itself at port 9090.
func pods(t *testing.T, n *node) {
	t.Helper()
	second := podIP(n.number, 2)
	if err := network.Raise(n.pod.ns, link, second[0]+"/24", second[1]+"/64"); err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	var sockets []io.Closer
	for _, ip := range append(second[:], podIP(n.number, 1)[0], podIP(n.number, 1)[1]) {
		at := netip.AddrPortFrom(netip.MustParseAddr(ip), 9090)
		var listener net.Listener
		var packets net.PacketConn
		err := n.pod.in(func() (err error) {
			if listener, err = net.Listen("tcp", at.String()); err != nil {
				return err
			}
			packets, err = net.ListenPacket("udp", at.String())
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		sockets = append(sockets, listener, packets)
		running.Go(func() {
			for conn, err := listener.Accept(); err == nil; conn, err = listener.Accept() {
				running.Go(func() {
					defer conn.Close()
					b := make([]byte, 100)
					for {
						if _, err := conn.Read(b); err != nil {
							return
						}
						_, _ = io.WriteString(conn, ip) // the client may have gone
					}
				})
			}
		})
		running.Go(func() {
			b := make([]byte, 100)
			for _, from, err := packets.ReadFrom(b); err == nil; _, from, err = packets.ReadFrom(b) {
				_, _ = packets.WriteTo([]byte(ip), from) // as above
			}
		})
	}
	t.Cleanup(func() {
		for _, each := range sockets {
			_ = each.Close()
		}
		running.Wait()
	})
}
