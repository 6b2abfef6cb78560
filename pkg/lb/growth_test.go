package lb

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tinkerbell/stack/pkg/lb/service"
)

// A node asks the link for all addresses together no more often than a switch that inspects ARP lets pass: 15 times a second,
// where its interval is a second.
func TestQuestionsAreBoundedWhateverTheNumberOfAddresses(t *testing.T) {
	c := newCluster(t, 2)
	const addresses = 12 // each would ask ten times a second, and a node may ask fourteen times
	for i := range addresses {
		c.service(fmt.Sprintf("web%d", i), fmt.Sprintf("192.0.2.%d", 50+i))
	}
	for i := range addresses {
		c.owner(fmt.Sprintf("192.0.2.%d", 50+i))
	}
	for _, n := range c.nodes {
		n.mu.Lock()
		n.asked = 0
		n.mu.Unlock()
	}
	const intervals = 20
	began := time.Now()
	time.Sleep(intervals * n100)
	passed := float64(time.Since(began)) / float64(n100)
	for i, n := range c.nodes {
		n.mu.Lock()
		asked := n.asked
		n.mu.Unlock()
		if float64(asked) > passed*dutifulRate+questionBurst {
			t.Errorf("n%d asked %d times in %.0f intervals", i, asked, passed)
		}
		if asked == 0 {
			t.Errorf("n%d did not ask", i)
		}
	}
}

// n100 is the interval of questions in tests.
const n100 = 100 * time.Millisecond

// Addresses spread over nodes that wait for them together, and a cordoned node takes what no other node wants.
func TestAddressesSpreadOverNodes(t *testing.T) {
	const addresses = 200
	has := map[string]int{}
	nodes := map[string]*Controller{}
	for _, node := range []string{"n0", "n1", "n2"} {
		c := New(Options{Client: newAPI(), Node: node, Namespace: "stack", Times: quick, Host: &station{}})
		if err := c.makeInformers(); err != nil {
			t.Fatal(err)
		}
		c.shutDown()
		nodes[node] = c
	}
	for i := range addresses {
		first, least := "", time.Hour
		for node, c := range nodes {
			v := newVIP(c, &service.Address{IP: netip.AddrFrom4([4]byte{192, 0, 2, byte(i)})})
			d := v.delay()
			if d < 0 || d >= spread {
				t.Fatalf("%s waits %v", node, d)
			}
			if d < least {
				first, least = node, d
			}
			known := &core.Node{ObjectMeta: meta.ObjectMeta{Name: node}, Spec: core.NodeSpec{Unschedulable: true}}
			if err := c.nodes.GetStore().Add(known); err != nil {
				t.Fatal(err)
			}
			if v.delay() < spread {
				t.Errorf("%s is cordoned and waits %v", node, v.delay())
			}
			if err := c.nodes.GetStore().Delete(known); err != nil {
				t.Fatal(err)
			}
		}
		has[first]++
	}
	for node := range nodes {
		if has[node] < addresses/5 {
			t.Errorf("%s has %d of %d addresses: %v", node, has[node], addresses, has)
		}
	}
}
