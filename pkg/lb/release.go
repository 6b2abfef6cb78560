package lb

import (
	"context"
	"net/netip"
	"strings"
	"sync"
	"time"

	coordination "k8s.io/api/coordination/v1"
)

// releasedAnnotation of the status lease lists the versions of other leases that a node has released last. So a node
// that leaves with a hundred addresses writes one lease in place of a hundred.
const releasedAnnotation = "stack-lb.tinkerbell.org/released"

// A release waits for gather, so that others join it, unless this node has few addresses.
const (
	gather       = 20 * time.Millisecond
	fewAddresses = 3
)

// releases gathers the leases that this node releases at one time.
type releases struct {
	mu   sync.Mutex
	next *releasing // that still waits for others; nil if none does
}

// releasing is a number of releases that one request to the API writes.
type releasing struct {
	versions []string
	done     chan struct{}
	written  bool
}

// release releases a version of a lease together with others, and reports whether it has. A few are better released
// each by itself: a node that reads such a lease learns of its release without the status lease.
func (c *Controller) release(ctx context.Context, lease, version string) bool {
	nodes, _ := c.holding(netip.Addr{})
	many := nodes[c.o.Identity] > fewAddresses
	r := &c.releases
	r.mu.Lock()
	now, first := r.next, r.next == nil
	if first && !many {
		r.mu.Unlock()
		return false
	}
	if first {
		now = &releasing{done: make(chan struct{})}
		r.next = now
	}
	now.versions = append(now.versions, lease+"="+version)
	r.mu.Unlock()
	if first {
		time.Sleep(gather)
		r.mu.Lock()
		r.next = nil
		r.mu.Unlock()
		now.written = c.status.Annotate(ctx, releasedAnnotation, strings.Join(now.versions, " ")) == nil
		close(now.done)
	}
	<-now.done
	return now.written
}

// holding returns how many addresses each node has, by its identity, as far as this node was told, and which node had
// an address before its holder: the node that gives it up, perhaps with all others.
func (c *Controller) holding(ip netip.Addr) (has map[string]int, former string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	has = map[string]int{}
	for at, v := range c.vips {
		if v.told != "" {
			has[v.told]++
		}
		if at == ip {
			former = v.former
		}
	}
	return has, former
}

// noteReleases tells the electors which leases a node has released. The caller holds mu.
func (c *Controller) noteReleases(status *coordination.Lease) {
	text := status.Annotations[releasedAnnotation]
	if text == c.noted {
		return
	}
	c.noted = text
	released := map[string]string{}
	for each := range strings.FieldsSeq(text) {
		lease, version, _ := strings.Cut(each, "=")
		released[lease] = version
	}
	for ip, v := range c.vips {
		if version := released[v.lease]; version != "" {
			v.elector.Released(version)
			c.tellHolder(ip, v)
		}
	}
}
