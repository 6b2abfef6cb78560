package lb

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	core "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	conditions "k8s.io/apimachinery/pkg/api/meta"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/tinkerbell/stack/internal/testwait"
	"github.com/tinkerbell/stack/pkg/frame"
	"github.com/tinkerbell/stack/pkg/lb/elect"
	"github.com/tinkerbell/stack/pkg/lb/service"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	testIP  = "192.0.2.10"
	testIP6 = "2001:db8::10"
)

var stranger = frame.MAC{2, 0, 0, 0, 0, 0x99}

// quick are the shortest times.
var quick = elect.Times{Lease: 3 * time.Second, Deadline: time.Second, Retry: 200 * time.Millisecond}

// member is a node of a cluster: a station and a controller.
type member struct {
	*station
	c    *Controller
	stop context.CancelFunc
	done chan struct{}
	log  *logText
	api  *way
}

func (m *member) leave() {
	m.api.set(false)
	m.stop()
	<-m.done
}

// logText is a log that may be read while it is written.
type logText struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *logText) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *logText) has(text string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Contains(l.text.String(), text)
}

// cluster is an API and nodes on a switch.
type cluster struct {
	t     *testing.T
	api   *fake.Clientset
	wires *wires
	nodes []*member
	// number tells clusters on one switch apart.
	number byte
	// namespace is where the leases are, and watch that of the Services; empty is all.
	namespace, watch string
	times            elect.Times
}

// newWires makes a switch.
func newWires() *wires {
	return &wires{
		has: map[netip.Addr]map[frame.MAC]bool{}, ports: map[*port]bool{},
		deaf: map[frame.MAC]bool{}, hosts: map[netip.Addr]frame.MAC{},
	}
}

func newCluster(t *testing.T, nodes int) *cluster {
	t.Helper()
	return newClusterOn(t, newWires(), 0, nodes)
}

// newClusterOn makes another cluster on a switch.
func newClusterOn(t *testing.T, on *wires, number byte, nodes int) *cluster {
	t.Helper()
	c := &cluster{t: t, api: newAPI(), wires: on, number: number, namespace: "stack", times: quick}
	for i := range nodes {
		c.nodes = append(c.nodes, c.start(i))
	}
	t.Cleanup(func() {
		for _, n := range c.nodes {
			n.leave()
		}
		if t.Failed() {
			for i, n := range c.nodes {
				t.Logf("n%d:\n%s", i, n.log.text.String())
			}
		}
	})
	return c
}

func (c *cluster) start(i int) *member {
	m := &member{
		station: &station{wires: c.wires, mac: frame.MAC{2, 0, 0, 0, c.number, byte(i + 1)}},
		done:    make(chan struct{}), log: &logText{}, api: newWay(c.api),
	}
	c.wires.mu.Lock()
	c.wires.hosts[m.host()] = m.mac
	c.wires.mu.Unlock()
	name := fmt.Sprintf("n%d", i)
	m.c = New(Options{
		Client: m.api, Node: name, Identity: Identity(name, "boot-id"), Namespace: c.namespace, Watch: c.watch, Times: c.times,
		Services: service.Options{Class: "tinkerbell.org/stack-lb"}, ProbeInterval: 100 * time.Millisecond, Host: m.station,
		Logger: slog.New(slog.NewTextHandler(m.log, nil)), Registerer: prometheus.NewRegistry(),
	})
	ctx, stop := context.WithCancel(context.Background())
	m.stop = stop
	go func() {
		defer close(m.done)
		if err := m.c.Run(ctx); err != nil {
			c.t.Error(err)
		}
	}()
	return m
}

// service writes a Service that asks for addresses, and endpoints of it that are ready on nodes.
func (c *cluster) service(name, addresses string, change ...func(*core.Service)) {
	c.t.Helper()
	class := "tinkerbell.org/stack-lb"
	s := &core.Service{
		ObjectMeta: meta.ObjectMeta{
			Name: name, Namespace: "stack", Annotations: map[string]string{service.AddressesAnnotation: addresses},
		},
		Spec: core.ServiceSpec{
			Type: core.ServiceTypeLoadBalancer, LoadBalancerClass: &class,
			IPFamilies: []core.IPFamily{core.IPv4Protocol, core.IPv6Protocol},
			Ports:      []core.ServicePort{{Port: 80, Protocol: core.ProtocolTCP}},
		},
	}
	for _, f := range change {
		f(s)
	}
	services := c.api.CoreV1().Services("stack")
	if old, err := services.Get(context.Background(), name, meta.GetOptions{}); err == nil {
		s.Status = old.Status
		if _, err := services.Update(context.Background(), s, meta.UpdateOptions{}); err != nil {
			c.t.Fatal(err)
		}
		return
	}
	if _, err := services.Create(context.Background(), s, meta.CreateOptions{}); err != nil {
		c.t.Fatal(err)
	}
}

func local(s *core.Service) { s.Spec.ExternalTrafficPolicy = core.ServiceExternalTrafficPolicyLocal }

func (c *cluster) endpoints(name string, ready ...string) {
	c.t.Helper()
	slice := &discovery.EndpointSlice{
		ObjectMeta:  meta.ObjectMeta{Name: name, Namespace: "stack", Labels: map[string]string{discovery.LabelServiceName: name}},
		AddressType: discovery.AddressTypeIPv4,
	}
	for _, node := range ready {
		slice.Endpoints = append(slice.Endpoints, discovery.Endpoint{NodeName: &node, Addresses: []string{"10.0.0.1"}})
	}
	slices := c.api.DiscoveryV1().EndpointSlices("stack")
	_, err := slices.Update(context.Background(), slice, meta.UpdateOptions{})
	if err != nil {
		_, err = slices.Create(context.Background(), slice, meta.CreateOptions{})
	}
	if err != nil {
		c.t.Fatal(err)
	}
}

// until waits for what has to come.
func (c *cluster) until(what string, ok func() bool) {
	c.t.Helper()
	testwait.Until(c.t, what, ok)
}

// owner waits until one station alone has the address, and says which.
func (c *cluster) owner(ip string, among ...frame.MAC) {
	c.t.Helper()
	c.until("one owner of "+ip, func() bool {
		owners := c.wires.owners(netip.MustParseAddr(ip))
		return len(owners) == 1 && (len(among) == 0 || slices.Contains(among, owners[0]))
	})
}

func (c *cluster) nobody(ip string) {
	c.t.Helper()
	c.until("nobody with "+ip, func() bool { return len(c.wires.owners(netip.MustParseAddr(ip))) == 0 })
}

// condition waits until a Service says a reason, with a text.
func (c *cluster) condition(name, reason, text string) {
	c.t.Helper()
	said := ""
	defer func() {
		if c.t.Failed() {
			c.t.Logf("service %s says %s", name, said)
		}
	}()
	c.until(reason+" on service "+name, func() bool {
		s, err := c.api.CoreV1().Services("stack").Get(context.Background(), name, meta.GetOptions{})
		if err != nil {
			return false
		}
		is := conditions.FindStatusCondition(s.Status.Conditions, service.ConditionType)
		if is != nil {
			said = is.Reason + ": " + is.Message
		}
		return is != nil && is.Reason == reason && strings.Contains(is.Message, text)
	})
}

// holders are the leases that somebody holds, by name.
func (c *cluster) holders() map[string]string {
	c.t.Helper()
	held := map[string]string{}
	list, err := c.api.CoordinationV1().Leases("stack").List(context.Background(), meta.ListOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	for _, l := range list.Items {
		if holder := l.Spec.HolderIdentity; holder != nil && *holder != "" {
			held[l.Name] = *holder
		}
	}
	return held
}

func (c *cluster) hasEvent(kind, reason string) bool {
	list, err := c.api.CoreV1().Events("stack").List(context.Background(), meta.ListOptions{})
	return err == nil && slices.ContainsFunc(list.Items, func(e core.Event) bool { return e.Type == kind && e.Reason == reason })
}
