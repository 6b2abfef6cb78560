package lb

import (
	"context"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	coordination "k8s.io/api/coordination/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tinkerbell/stack/pkg/frame"
	"github.com/tinkerbell/stack/pkg/lb/elect"
	"github.com/tinkerbell/stack/pkg/lb/service"
)

// deafen has stations of a switch neither hear nor be heard, though their links are up.
func (c *cluster) deafen(stations ...*member) {
	c.wires.mu.Lock()
	defer c.wires.mu.Unlock()
	clear(c.wires.deaf)
	for _, m := range stations {
		c.wires.deaf[m.mac] = true
	}
}

// holder is the node that has the address, and others are those that have not.
func (c *cluster) holder() (holder *member, others []*member) {
	c.t.Helper()
	c.owner(testIP)
	mac := c.wires.owners(netip.MustParseAddr(testIP))[0]
	for _, m := range c.nodes {
		if m.mac == mac {
			holder = m
		} else {
			others = append(others, m)
		}
	}
	return holder, others
}

// doubted is what the lease says of its holder.
func (c *cluster) doubted() string {
	c.t.Helper()
	lease, err := c.api.CoordinationV1().Leases("stack").Get(
		context.Background(), LeaseName(netip.MustParseAddr(testIP)), meta.GetOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	return lease.Annotations[elect.DoubtAnnotation]
}

// A node that has the address and the API, and a link that is up and on which nobody hears it, gives the address to one
// that hears the link, and does not take it back.
func TestHolderThatHearsNobodyStepsBack(t *testing.T) {
	c := newCluster(t, 3)
	c.service("web", testIP)
	holder, others := c.holder()
	c.deafen(holder)
	c.owner(testIP, others[0].mac, others[1].mac)
	if !holder.log.has("nobody on the link answers this node") {
		t.Error("it has not said why")
	}
	if doubt := c.doubted(); doubt != "" {
		t.Errorf("the next holder is doubted: %s", doubt)
	}
	owner := c.wires.owners(netip.MustParseAddr(testIP))[0]
	for end := time.Now().Add(2 * quick.Lease); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if c.wires.owners(netip.MustParseAddr(testIP))[0] != owner {
			t.Fatal("the address moved again")
		}
	}
	if c.wires.two > 0 {
		t.Error("two owners")
	}
}

// Silence alone moves nothing: a node that hears nobody says nothing of the holder, and a holder that hears another
// station keeps the address.
func TestSilenceAloneMovesNothing(t *testing.T) {
	for name, test := range map[string]struct {
		deaf func(holder *member, others []*member) []*member
	}{
		"a candidate hears nobody": {
			deaf: func(_ *member, others []*member) []*member { return others[:1] },
		},
		"nobody hears anybody": {
			deaf: func(holder *member, others []*member) []*member { return append(others, holder) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, 3)
			c.service("web", testIP)
			holder, others := c.holder()
			c.deafen(test.deaf(holder, others)...)
			c.until("silence", func() bool { return testutil.ToFloat64(others[0].c.metrics.notServing) == 1 })
			time.Sleep(quick.Lease)
			c.stays(testIP, holder.mac)
			if doubt := c.doubted(); doubt != "" {
				t.Errorf("a node that hears nobody doubts the holder: %s", doubt)
			}
		})
	}
}

// A holder that is doubted asks whomever it knows on the link, and keeps the address where one answers.
func TestDoubtedHolderThatIsHeardStays(t *testing.T) {
	c := newCluster(t, 2)
	c.service("web", testIP)
	holder, others := c.holder()
	v := others[0].c.vips[netip.MustParseAddr(testIP)]
	if err := v.elector.Doubt(t.Context(), holder.c.o.Identity, "n9 192.0.2.99 now"); err != nil {
		t.Fatal(err)
	}
	c.until("the doubt", func() bool { return c.doubted() != "" })
	c.stays(testIP, holder.mac)
}

// While a lease runs out the next holder probes already: it claims the address when the lease ends.
func TestNextHolderProbesBeforeTheLeaseEnds(t *testing.T) {
	c := newCluster(t, 2)
	c.service("web", testIP)
	holder, others := c.holder()
	c.until("an answer", func() bool { return testutil.ToFloat64(others[0].c.metrics.wireOwners) == 1 })
	holder.mu.Lock() // it stands still, and the kernel takes its address away
	c.wires.set(netip.MustParseAddr(testIP), holder.mac, false)
	c.until("another owner", func() bool {
		if doubt := c.doubted(); doubt != "" {
			t.Errorf("a node that is gone is doubted: %s", doubt)
		}
		return len(c.wires.owners(netip.MustParseAddr(testIP))) == 1
	})
	c.owner(testIP, others[0].mac)
	c.until("an announcement", func() bool {
		others[0].mu.Lock()
		defer others[0].mu.Unlock()
		return len(others[0].claims) > 0
	})
	others[0].mu.Lock()
	probes := others[0].claims[0]
	others[0].mu.Unlock()
	c.wires.set(netip.MustParseAddr(testIP), holder.mac, false)
	holder.mu.Unlock()
	if probes != 0 {
		t.Errorf("%d probes after the lease's end", probes)
	}
}

// While a node finds out whether it is itself that hears nobody, it goes on to watch.
func TestDoubtDoesNotKeepTheWatch(t *testing.T) {
	answer := make(chan struct{})
	host := &station{wires: newWires(), mac: frame.MAC{2, 0, 0, 0, 0, 1}, neighbours: answer}
	c := New(Options{Client: newAPI(), Node: "n0", Namespace: "stack", Times: quick, Host: host})
	defer c.shutDown()
	v := newVIP(c, &service.Address{IP: netip.MustParseAddr(testIP)})
	link, err := host.Find(v.ip, "")
	if err != nil {
		t.Fatal(err)
	}
	v.elector.Observe(&coordination.Lease{
		ObjectMeta: meta.ObjectMeta{Name: LeaseName(v.ip), UID: "1", ResourceVersion: "1"},
		Spec:       coordination.LeaseSpec{HolderIdentity: new("n1_boot"), RenewTime: new(meta.NowMicro())},
	}, false)
	v.silent, v.silentAt = silentRounds, time.Now().Add(-quick.Lease)
	v.doubt(t.Context(), link) // would wait for ever
	if v.doubted.IsZero() {
		t.Error("it does not doubt")
	}
	close(answer)
	v.closing.Wait()
}

// All addresses of a link that want to know whether somebody hears this node ask once together.
func TestAddressesOfALinkAskTogether(t *testing.T) {
	wires := newWires()
	host := &station{wires: wires, mac: frame.MAC{2, 0, 0, 0, 0, 1}}
	wires.deaf[host.mac] = true
	wires.hosts[netip.MustParseAddr("192.0.2.1")] = frame.MAC{2, 0, 0, 0, 0, 9}
	turns := 0
	e := ear{host: host, turn: func(context.Context) error { turns++; return nil }}
	witness := netip.MustParseAddr("192.0.2.2")
	var asking sync.WaitGroup
	for i := range 100 {
		asking.Go(func() {
			ip := netip.AddrFrom4([4]byte{192, 0, 2, byte(100 + i)})
			link, err := host.Find(ip, "")
			if err != nil {
				t.Error(err)
			}
			if answered, err := e.hears(t.Context(), link, ip, witness); answered || err != nil {
				t.Errorf("answered %v, %v", answered, err)
			}
		})
	}
	asking.Wait()
	if turns != 4 || host.asked != turns { // a neighbour and the witness, twice
		t.Errorf("%d turns and %d questions", turns, host.asked)
	}
}
