package elect

import (
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	coordination "k8s.io/api/coordination/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// council is nodes on one link, of which the holder asks the others once a second.
type council struct {
	*api
	t     *testing.T
	nodes []*node
	ways  map[*node]*way

	mu   sync.Mutex
	over atomic.Bool
	cut  map[string]bool // nodes whose messages do not come through
	late time.Duration   // of challenges
}

// way is a node's own way to the API.
type way struct {
	*api
	mu  sync.Mutex
	cut bool
}

func (w *way) set(cut bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cut = cut
}

func (w *way) away() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.cut
}

func (w *way) Get(ctx context.Context, name string, o meta.GetOptions) (*coordination.Lease, error) {
	if w.away() {
		return nil, errAway
	}
	return w.api.Get(ctx, name, o)
}

func (w *way) Update(ctx context.Context, l *coordination.Lease, o meta.UpdateOptions) (*coordination.Lease, error) {
	if w.away() {
		return nil, errAway
	}
	return w.api.Update(ctx, l, o)
}

func (w *way) Patch(
	ctx context.Context, name string, kind types.PatchType, text []byte, o meta.PatchOptions, _ ...string,
) (*coordination.Lease, error) {
	if w.away() {
		return nil, errAway
	}
	return w.api.Patch(ctx, name, kind, text, o)
}

// convene starts nodes, of which the first one has the address and has listed all.
func convene(t *testing.T, names ...string) *council {
	t.Helper()
	c := &council{api: &api{}, t: t, ways: map[*node]*way{}, cut: map[string]bool{}}
	for _, name := range names {
		c.add(name)
		if len(c.nodes) == 1 {
			outage(t, c.nodes...)
		}
	}
	c.requests.Go(func() {
		for !c.over.Load() {
			c.ask()
			time.Sleep(time.Second / 2)
		}
	})
	c.list(names...)
	return c
}

func (c *council) add(name string) *node {
	w := &way{api: c.api}
	n := startWith(c.t, c.api, w, name, Default, nil, true)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.nodes, c.ways[n] = append(c.nodes, n), w
	return n
}

// list has the holder list nodes, and waits until the API has that.
func (c *council) list(names ...string) {
	c.t.Helper()
	for _, n := range c.nodes {
		n.elector.List(names)
	}
	for range 30 {
		time.Sleep(100 * time.Millisecond)
		c.api.mu.Lock()
		has := strings.Fields(c.lease.Annotations[MembersAnnotation])
		c.api.mu.Unlock()
		if slices.Equal(has[1:], names) {
			return
		}
	}
	c.t.Fatalf("the lease does not list %v", names)
}

func (c *council) ask() {
	c.mu.Lock()
	nodes, late := slices.Clone(c.nodes), c.late
	c.mu.Unlock()
	for _, n := range nodes {
		asked := n.elector.Asked()
		if len(asked) == 0 || !n.elector.Late() || c.isCut(n.name) {
			continue
		}
		start, all := time.Now(), true
		time.Sleep(late)
		for _, other := range nodes {
			if other != n && slices.Contains(asked, other.name) {
				all = !c.isCut(other.name) && other.elector.Promise(n.name) && all
				asked = slices.DeleteFunc(slices.Clone(asked), func(name string) bool { return name == other.name })
			}
		}
		if all && len(asked) == 1 {
			n.elector.Consented(start)
		}
	}
}

// away has the API be away for all.
func (c *council) away(is bool) { c.set(func() { c.api.away = is }) }

func (c *council) cutOff(name string, is bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cut[name] = is
}

func (c *council) isCut(name string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cut[name]
}

func (c *council) end() {
	for _, n := range c.nodes {
		n.leave()
	}
	c.over.Store(true)
	c.requests.Wait()
}

// The API is away for ten minutes: the address stays where it is, whether the cluster has one node, two or three.
func TestAddressOutlivesTheAPI(t *testing.T) {
	for _, names := range [][]string{{"n1"}, {"n1", "n2"}, {"n1", "n2", "n3"}} {
		t.Run(strings.Join(names, " "), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := convene(t, names...)
				time.Sleep(5 * time.Second)
				c.away(true)
				if part := served(t, 10*time.Minute, c.nodes...); part < 1 {
					t.Errorf("the address is there for %.1f %% of the time", 100*part)
				}
				c.away(false)
				if part := served(t, time.Minute, c.nodes...); part < 1 || c.holder() != "n1" {
					t.Errorf("once the API is back: %.1f %%, holder %s", 100*part, c.holder())
				}
				c.end()
			})
		})
	}
}

// The consent of others ends before the patience of those whose consent is not asked for.
func TestConsentEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := convene(t, "n1", "n2")
		time.Sleep(5 * time.Second)
		newcomer := c.add("n3") // and its messages are not heard
		time.Sleep(time.Second)
		c.ways[c.nodes[0]].set(true)
		c.ways[c.nodes[1]].set(true)
		began := time.Now()
		for !newcomer.owns() && time.Since(began) < time.Hour {
			served(t, time.Second, c.nodes...)
		}
		if took := time.Since(began); took < 14*time.Minute || took > 16*time.Minute {
			t.Errorf("the newcomer has the address after %v", took)
		}
		c.end()
	})
}

// A member that is cut off, or has died, consents no more: the address goes, and comes back with the API.
func TestAddressGoesWithoutTheConsentOfAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := convene(t, "n1", "n2", "n3")
		time.Sleep(5 * time.Second)
		c.away(true)
		time.Sleep(20 * time.Second)
		c.cutOff("n3", true)
		served(t, 10*time.Second, c.nodes...)
		if part := served(t, 10*time.Second, c.nodes...); part > 0 {
			t.Errorf("without the consent of all the address is there for %.1f %% of the time", 100*part)
		}
		c.cutOff("n3", false)
		served(t, 5*time.Second, c.nodes...)
		if part := served(t, 10*time.Second, c.nodes...); part < 1 {
			t.Errorf("with the consent of all again the address is there for %.1f %% of the time", 100*part)
		}
		c.end()
	})
}

// A member that alone reaches the API takes the address where the holder reaches neither it nor the API, and not before
// its promise has ended.
func TestMemberThatReachesTheAPITakesTheAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := convene(t, "n1", "n2", "n3")
		time.Sleep(5 * time.Second)
		c.ways[c.nodes[0]].set(true)
		if part := served(t, time.Minute, c.nodes...); part < 1 || !c.nodes[0].owns() {
			t.Errorf("while the others consent the address is there for %.1f %% of the time", 100*part)
		}
		c.cutOff("n1", true)
		served(t, 10*time.Second, c.nodes...)
		if c.nodes[0].owns() {
			t.Error("it has the address without consent")
		}
		if part := served(t, 10*time.Second, c.nodes...); part < 1 {
			t.Errorf("the next one has the address for %.1f %% of the time", 100*part)
		}
		c.end()
	})
}

// Whatever is cut off and stands still, there are never two owners.
func TestConsentHasNeverTwoOwnersAtRandom(t *testing.T) {
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			r := random(seed)
			c := convene(t, "n1", "n2", "n3")
			c.mu.Lock()
			c.late = 300 * time.Millisecond
			c.mu.Unlock()
			for range 60 {
				n := c.nodes[r.IntN(len(c.nodes))]
				switch r.IntN(6) {
				case 0:
					c.away(r.IntN(2) == 0)
				case 1, 2:
					c.ways[n].set(r.IntN(2) == 0)
				case 3:
					c.cutOff(n.name, r.IntN(2) == 0)
				case 4:
					n.set(func(n *node) { n.stopped = time.Now().Add(time.Duration(r.IntN(15)) * time.Second) })
				case 5:
					late := time.Duration(r.IntN(5)) * time.Second
					c.set(func() { c.delay = func() time.Duration { return late } })
				}
				served(t, time.Duration(r.IntN(8000))*time.Millisecond, c.nodes...)
			}
			c.away(false)
			c.set(func() { c.delay = nil })
			for _, n := range c.nodes {
				c.ways[n].set(false)
				c.cutOff(n.name, false)
			}
			served(t, 30*time.Second, c.nodes...)
			if part := served(t, 10*time.Second, c.nodes...); part < 1 {
				t.Errorf("seed %d: at last the address is there for %.1f %% of the time", seed, 100*part)
			}
			c.end()
		})
	}
}

// A holder that leaves is followed at once, though all have consented a moment ago that it goes on.
func TestReleaseEndsWhatWasPromised(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := convene(t, "n1", "n2")
		time.Sleep(5 * time.Second)
		c.away(true)
		time.Sleep(20 * time.Second)
		c.away(false)
		time.Sleep(2 * time.Second) // n2 has promised less than a lease ago
		c.nodes[0].leave()
		if took := outage(t, c.nodes[1]); took > time.Second {
			t.Errorf("the address was away for %v", took)
		}
		c.end()
	})
}
