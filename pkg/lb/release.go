package lb

import (
	"context"
	"net/netip"
	"strings"
	"sync"
	"time"

	coordination "k8s.io/api/coordination/v1"
)

// releasedAnnotation is of the status lease: the versions of other leases that a node has released last. So a node that
// leaves with a hundred addresses writes one lease in place of a hundred.
const releasedAnnotation = "stack-lb.tinkerbell.org/released"

// A release waits for others for gather, unless this node has few addresses.
const (
	gather       = 20 * time.Millisecond
	fewAddresses = 3
)

// releases are what this node releases at a time.
type releases struct {
	mu   sync.Mutex
	next *releasing // what waits for others
}

// releasing is what is released by one request.
type releasing struct {
	versions []string
	done     chan struct{}
	written  bool
}

// release releases a version of a lease together with others, and reports whether it has. A few are better released
// each by itself: who reads such a lease knows, whatever else it has not read.
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

// holding is how many addresses each node has, by its identity, as far as this one was told, and who had an address
// before its holder: the node that gives it up, perhaps with all others.
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

// noteReleases tells the electors of what a node has released. The caller holds mu.
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
