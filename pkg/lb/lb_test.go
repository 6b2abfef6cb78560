package lb

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestServiceLife is the way of a Service: created, with endpoints that move, with another address, deleted.
func TestServiceLife(t *testing.T) {
	c := newCluster(t, 2)
	c.service("web", testIP+","+testIP6, local)
	c.condition("web", "NoEndpoint", "no ready endpoint of Service stack/web is on this node")
	c.nobody(testIP)
	ready := time.Now()
	c.endpoints("web", "n1")
	c.owner(testIP, c.nodes[1].mac)
	if took := time.Since(ready); took < followed {
		t.Errorf("the address came %v after its endpoint, before kube-proxy knew of it", took)
	}
	s, err := c.api.CoreV1().Services("stack").Get(t.Context(), "web", meta.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	c.until("its ingress", func() bool {
		s, err = c.api.CoreV1().Services("stack").Get(t.Context(), "web", meta.GetOptions{})
		in := s.Status.LoadBalancer.Ingress
		return err == nil && len(in) == 1 && in[0].IP == testIP && *in[0].IPMode == core.LoadBalancerIPModeVIP
	})
	c.until("an Event", func() bool { return c.hasEvent(core.EventTypeNormal, "Announced") })
	c.endpoints("web", "n0")
	c.owner(testIP, c.nodes[0].mac)
	c.endpoints("web", "n0", "n1")
	c.service("web", "192.0.2.11", local)
	c.owner("192.0.2.11")
	c.nobody(testIP)
	c.condition("web", "Announced", "192.0.2.11 is announced by node n")
	if err := c.api.CoreV1().Services("stack").Delete(t.Context(), "web", meta.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	c.nobody("192.0.2.11")
	if c.wires.two > 0 {
		t.Error("two owners")
	}
}

// A node that leaves takes neither addresses nor leases with it: the next one has them, and the last holds none.
func TestNodesLeave(t *testing.T) {
	c := newCluster(t, 2)
	c.service("web", testIP+","+testIP6)
	c.owner(testIP)
	c.owner(testIP6)
	c.until("a node that stands by", func() bool {
		return testutil.CollectAndCount(c.nodes[0].c.metrics.why)+testutil.CollectAndCount(c.nodes[1].c.metrics.why) == 2
	})
	c.nodes[0].leave()
	c.owner(testIP, c.nodes[1].mac)
	c.owner(testIP6, c.nodes[1].mac)
	c.condition("web", "Announced", testIP6+" is announced by node n1")
	c.nodes[1].leave()
	c.nobody(testIP)
	c.nobody(testIP6)
	if left := c.holders(); len(left) > 0 {
		t.Errorf("left leases that are held: %v", left)
	}
	if c.wires.two > 0 {
		t.Error("two owners")
	}
}

func TestNodesThatDoNotServe(t *testing.T) {
	faults := map[string]struct{ fault, mend func(*cluster, *member) }{
		"link down": {
			func(_ *cluster, m *member) { m.mu.Lock(); m.down = true; m.mu.Unlock() },
			func(_ *cluster, m *member) { m.mu.Lock(); m.down = false; m.mu.Unlock() },
		},
		"kernel refuses": {
			func(_ *cluster, m *member) {
				m.mu.Lock()
				m.fail = fmt.Errorf("operation not permitted")
				m.mu.Unlock()
			},
			func(_ *cluster, m *member) { m.mu.Lock(); m.fail = nil; m.mu.Unlock() },
		},
		"node is excluded": {
			func(c *cluster, m *member) { c.label(m, map[string]string{core.LabelNodeExcludeBalancers: ""}) },
			func(c *cluster, m *member) { c.label(m, nil) },
		},
	}
	for name, test := range faults {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, 2)
			c.service("web", testIP)
			c.owner(testIP)
			for range 2 {
				holder := c.nodes[0]
				other := c.nodes[1]
				if c.wires.owners(netip.MustParseAddr(testIP))[0] != holder.mac {
					holder, other = other, holder
				}
				test.fault(c, holder)
				c.owner(testIP, other.mac)
				test.mend(c, holder)
			}
			if c.wires.two > 0 {
				t.Error("two owners")
			}
		})
	}
}

func (c *cluster) label(m *member, labels map[string]string) {
	node := &core.Node{ObjectMeta: meta.ObjectMeta{Name: m.c.o.Node, Labels: labels}}
	_, err := c.api.CoreV1().Nodes().Update(context.Background(), node, meta.UpdateOptions{})
	if err != nil {
		_, err = c.api.CoreV1().Nodes().Create(context.Background(), node, meta.CreateOptions{})
	}
	if err != nil {
		c.t.Error(err)
	}
}

// Nobody claims an address that a stranger answers for, until the stranger has gone.
func TestAddressThatSomebodyHas(t *testing.T) {
	c := newCluster(t, 2)
	c.wires.set(netip.MustParseAddr(testIP), stranger, true)
	c.service("web", testIP)
	c.condition("web", "AddressInUse", "02:00:00:00:00:99 answers for "+testIP+" already")
	c.until("an Event", func() bool { return c.hasEvent(core.EventTypeWarning, "AddressInUse") })
	time.Sleep(time.Second)
	if owners := c.wires.owners(netip.MustParseAddr(testIP)); len(owners) != 1 {
		t.Fatalf("owners %v", owners)
	}
	c.wires.set(netip.MustParseAddr(testIP), stranger, false)
	c.owner(testIP, c.nodes[0].mac, c.nodes[1].mac)
	c.condition("web", "Announced", "")
}

// A stranger that takes an address which is announced is seen by all nodes.
func TestTwoOwnersAreSeen(t *testing.T) {
	c := newCluster(t, 2)
	c.service("web", testIP)
	c.owner(testIP)
	c.until("one owner on the wire", func() bool { return testutil.ToFloat64(c.nodes[0].c.metrics.wireOwners) == 1 })
	c.wires.set(netip.MustParseAddr(testIP), stranger, true)
	for i, n := range c.nodes {
		c.until(fmt.Sprintf("two owners seen by n%d", i), func() bool {
			return testutil.ToFloat64(n.c.metrics.wireOwners) == 2 && n.log.has("two owners of an address")
		})
	}
	c.wires.set(netip.MustParseAddr(testIP), stranger, false)
	for _, n := range c.nodes {
		c.until("one owner again", func() bool { return testutil.ToFloat64(n.c.metrics.wireOwners) == 1 })
	}
}

// A lease that is held while nobody answers is seen by the other nodes.
func TestLeaseHeldWithoutServing(t *testing.T) {
	c := newCluster(t, 2)
	c.service("web", testIP)
	c.owner(testIP)
	holder, other := c.nodes[0], c.nodes[1]
	if c.wires.owners(netip.MustParseAddr(testIP))[0] != holder.mac {
		holder, other = other, holder
	}
	holder.mu.Lock() // its kernel does not answer any more: neither its controller nor the wire
	c.wires.set(netip.MustParseAddr(testIP), holder.mac, false)
	c.until("a lease without an answer", func() bool { return testutil.ToFloat64(other.c.metrics.notServing) == 1 })
	holder.mu.Unlock()
	c.owner(testIP)
	c.until("an answer", func() bool { return testutil.ToFloat64(other.c.metrics.notServing) == 0 })
}

func TestServicesThatAreRefused(t *testing.T) {
	c := newCluster(t, 1)
	c.service("a", testIP)
	c.condition("a", "Announced", "")
	c.service("b", testIP)
	c.condition("b", "PortTaken", "port 80/TCP of "+testIP+" is Service stack/a's")
	c.service("c", "198.51.100.1")
	c.condition("c", "NoLink", "no link has a network with 198.51.100.1")
	c.service("d", "")
	c.condition("d", "NoAddress", "")
	c.until("Events", func() bool {
		return c.hasEvent(core.EventTypeWarning, "PortTaken") && c.hasEvent(core.EventTypeWarning, "NoLink")
	})
	c.until("refused Services", func() bool { return testutil.ToFloat64(c.nodes[0].c.metrics.refused) == 2 })
	c.service("d", "", func(s *core.Service) {
		s.Spec.Type, s.Spec.LoadBalancerClass = core.ServiceTypeClusterIP, nil
	})
	c.until("no condition on a Service that is ours no longer", func() bool {
		s, err := c.api.CoreV1().Services("stack").Get(t.Context(), "d", meta.GetOptions{})
		return err == nil && len(s.Status.Conditions) == 0
	})
}
