package lb

import (
	"errors"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/tinkerbell/stack/pkg/frame"
	"github.com/tinkerbell/stack/pkg/lb/consent"
)

var errAway = errors.New("connection refused")

// members waits until the holder asks for the consent of so many nodes.
func (c *cluster) members(want int) {
	c.t.Helper()
	c.until("members", func() bool {
		for _, n := range c.nodes {
			for _, view := range n.c.Views() {
				if len(view.Members) == want {
					return true
				}
			}
		}
		return false
	})
}

// While the API is away the address stays where it is, as long as every other node consents; without the consent of one
// it goes, and it is back with the API.
func TestAddressStaysWhileTheAPIIsAway(t *testing.T) {
	c, away := newKeyedCluster(t, 3)
	c.service("web", testIP)
	c.owner(testIP)
	c.members(3)
	time.Sleep(quick.Lease) // a process that has just started does not consent
	owner := c.wires.owners(netip.MustParseAddr(testIP))[0]
	away.Store(true)
	byConsent := func() bool {
		for _, n := range c.nodes {
			if testutil.ToFloat64(n.c.metrics.consented) == 1 {
				return true
			}
		}
		return false
	}
	c.until("an address by consent", byConsent)
	const samples = 400
	there := 0
	for range samples { // 12 s: four leases, of which one is without consent
		time.Sleep(30 * time.Millisecond)
		there += len(c.wires.owners(netip.MustParseAddr(testIP)))
	}
	if there < samples/2 { // a machine that is busy may lose it for a moment
		t.Errorf("the address was there in %d of %d looks", there, samples)
	}
	other := c.nodes[0].mac
	if other == owner {
		other = c.nodes[1].mac
	}
	c.wires.mu.Lock()
	c.wires.cut = map[frame.MAC]bool{other: true}
	c.wires.mu.Unlock()
	c.nobody(testIP)
	away.Store(false)
	c.owner(testIP)
	if byConsent() {
		t.Error("the API is back, and the metric says consent")
	}
	if c.wires.two > 0 {
		t.Error("two owners")
	}
}

// What is recorded, forged, or of another installation has no effect.
func TestForgedMessagesHaveNoEffect(t *testing.T) {
	c, _ := newKeyedCluster(t, 1)
	c.service("web", testIP)
	c.owner(testIP)
	ear, _ := (&station{wires: c.wires, mac: stranger}).Frames(c.nodes[0].c.vips[netip.MustParseAddr(testIP)].at())
	for _, codec := range []*consent.Codec{
		consent.NewCodec("stack", []byte("another key, as long as ours")), consent.NewCodec("other", []byte(testKey)),
	} {
		who := consent.Message{Kind: consent.Who, Boot: 1, Count: 1, From: c.nodes[0].c.o.Identity + "x"}
		if err := ear.Send(frame.Broadcast, codec.Append(nil, who)); err != nil {
			t.Fatal(err)
		}
	}
	c.until("a refusal", func() bool { return c.nodes[0].log.has("refused the message of another node") })
}

const testKey = "a key of sixteen bytes or more"

// newKeyedCluster makes a cluster whose nodes have a key. Requests for leases fail while away is set.
func newKeyedCluster(t *testing.T, nodes int) (c *cluster, away *atomic.Bool) {
	t.Helper()
	c, away = newClusterOn(t, newWires(), 0, 0), &atomic.Bool{}
	c.api.PrependReactor("*", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
		return away.Load(), nil, errAway
	})
	c.key = []byte(testKey)
	for i := range nodes {
		c.nodes = append(c.nodes, c.start(i))
	}
	return c, away
}
