package lb

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tinkerbell/stack/pkg/frame"
	"github.com/tinkerbell/stack/pkg/lb/reason"
	"github.com/tinkerbell/stack/pkg/lb/service"
)

// asked waits for the first claim of a station, and says how many probes it sent before.
func (c *cluster) asked(m *member) int {
	c.t.Helper()
	questions := 0
	c.until("a claim", func() bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		if len(m.claims) > 0 {
			questions = m.claims[0]
		}
		return len(m.claims) > 0
	})
	return questions
}

// pair is a cluster of two nodes, of which the first has the address and the second has heard that it does.
func pair(t *testing.T) *cluster {
	t.Helper()
	c := newCluster(t, 1)
	c.service("web", testIP)
	c.owner(testIP, c.nodes[0].mac)
	c.nodes = append(c.nodes, c.start(1))
	c.heard(1)
	return c
}

// heard waits until the second node has heard as many owners.
func (c *cluster) heard(owners float64) {
	c.t.Helper()
	c.until("answers on the wire", func() bool {
		seen := c.nodes[1].c.metrics.wireOwners
		return testutil.CollectAndCount(seen) == 1 && testutil.ToFloat64(seen) == owners
	})
}

// A node that leaves in order hands the address over: the next one claims it at once, since it has heard nobody else, and
// knows that the former one has removed it.
func TestHandoverNeedsNoProbe(t *testing.T) {
	c := pair(t)
	c.nodes[0].leave()
	c.owner(testIP, c.nodes[1].mac)
	if questions := c.asked(c.nodes[1]); questions != 0 {
		t.Errorf("asked %d times for an address that was handed over", questions)
	}
	if c.wires.two > 0 {
		t.Error("two owners")
	}
}

// Where a stranger answers beside the node that leaves, the address is not claimed before the stranger has gone.
func TestHandoverBesideAStranger(t *testing.T) {
	c := pair(t)
	ip := netip.MustParseAddr(testIP)
	c.wires.set(ip, stranger, true)
	c.heard(2)
	c.nodes[0].leave()
	c.condition("web", "AddressInUse", "02:00:00:00:00:99 answers for "+testIP+" already")
	time.Sleep(500 * time.Millisecond)
	if owners := c.wires.owners(ip); !slices.Contains(owners, stranger) || len(owners) != 1 {
		t.Errorf("owners %v", owners)
	}
	c.wires.set(ip, stranger, false)
	c.owner(testIP, c.nodes[1].mac)
}

// A lease whose holder somebody else has removed is no handover: its holder may have the address still.
func TestLeaseFreedByHandIsNoHandover(t *testing.T) {
	c := pair(t)
	holder := c.nodes[0]
	holder.mu.Lock() // it does nothing meanwhile
	mend := sync.OnceFunc(holder.mu.Unlock)
	defer mend()
	leases := c.api.CoordinationV1().Leases("stack")
	for freed := false; !freed; {
		lease, err := leases.Get(context.Background(), LeaseName(netip.MustParseAddr(testIP)), meta.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		lease.Spec.HolderIdentity = nil
		_, err = leases.Update(context.Background(), lease, meta.UpdateOptions{})
		freed = err == nil
	}
	c.until("a probe that was answered", func() bool { return c.nodes[1].log.has("address is in use") })
	mend()
	c.owner(testIP)
	if c.wires.two > 0 {
		t.Error("two owners")
	}
}

// A node that has just started is no candidate before it has heard the link: it would have to ask before it claims an address
// that is handed over, which another node need not.
func TestNodeThatHasJustStartedIsNoCandidate(t *testing.T) {
	c := New(Options{Client: newAPI(), Node: "n0", Namespace: "stack", Times: quick, Host: &station{}})
	if err := c.makeInformers(); err != nil {
		t.Fatal(err)
	}
	defer c.shutDown()
	v := newVIP(c, &service.Address{IP: netip.MustParseAddr(testIP)})
	if why := v.candidate(); why == nil || v.reasonOf(why).Reason != reason.Starting {
		t.Errorf("before it has asked: got %v, want %v", why, reason.Starting)
	}
	v.hasLooked()
	if why := v.candidate(); why != nil {
		t.Errorf("after it has asked: %v", why)
	}
}

// A bond whose card has failed may have another Ethernet address then: the node announces the address from there, and keeps
// it.
func TestAddressFollowsItsLinksEthernetAddress(t *testing.T) {
	c := pair(t)
	holder := c.nodes[0]
	next := frame.MAC{2, 0, 0, 0, 7, 7}
	holder.mu.Lock()
	holder.bond = next
	holder.mu.Unlock()
	holder.c.linksChanged(nil)
	c.until("an announcement from there", func() bool {
		holder.mu.Lock()
		defer holder.mu.Unlock()
		return len(holder.claims) == 2
	})
	c.until("the lease names the station", func() bool {
		return c.nodes[1].c.vips[netip.MustParseAddr(testIP)].elector.Holder().Stations == hardware(next)
	})
	if holder.log.has("withdrew address") {
		t.Error("the node has given the address up")
	}
}
