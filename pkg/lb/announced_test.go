package lb

import (
	"context"
	"net/netip"
	"testing"
	"time"

	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ingress is what the status of a Service has.
func (c *cluster) ingress(name string) (ips []string) {
	s, err := c.api.CoreV1().Services("stack").Get(context.Background(), name, meta.GetOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	for _, i := range s.Status.LoadBalancer.Ingress {
		ips = append(ips, i.IP)
	}
	return ips
}

// An address that somebody has is in no status, however long a node holds its lease: kube-proxy would divert it.
func TestNoIngressBeforeAnAddressIsAnnounced(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2)
	c.wires.set(netip.MustParseAddr(testIP), stranger, true)
	c.service("web", testIP)
	for end := time.Now().Add(4 * quick.Lease); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if ips := c.ingress("web"); len(ips) > 0 {
			t.Fatalf("the status has %v, which a stranger has", ips)
		}
	}
	c.condition("web", "AddressInUse", testIP)
	c.wires.set(netip.MustParseAddr(testIP), stranger, false)
	c.until("an ingress", func() bool { return len(c.ingress("web")) == 1 })
	c.condition("web", "Announced", testIP)
}

// An address that no node announces any more leaves the status, and comes back with the next one that does.
func TestIngressGoesWhenNobodyAnnounces(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1)
	c.endpoints("web", "n0")
	c.service("web", testIP, local)
	c.until("an ingress", func() bool { return len(c.ingress("web")) == 1 })
	c.endpoints("web")
	c.until("no ingress", func() bool { return len(c.ingress("web")) == 0 })
	c.endpoints("web", "n0")
	c.until("an ingress again", func() bool { return len(c.ingress("web")) == 1 })
}

// Statuses that the API does not take keep no address waiting.
func TestStatusThatHangsDelaysNoAddress(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1)
	c.nodes[0].api.hang()
	c.service("a", testIP)
	c.owner(testIP)
	c.service("b", "192.0.2.11")
	c.owner("192.0.2.11")
	if err := c.api.CoreV1().Services("stack").Delete(t.Context(), "a", meta.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	c.nobody(testIP)
	if took := time.Since(began); took > writeTimeout/2 {
		t.Errorf("the address of a deleted Service lived for %v", took)
	}
}
