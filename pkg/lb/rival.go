package lb

import (
	"cmp"
	"slices"
	"strings"
	"time"

	coordination "k8s.io/api/coordination/v1"
	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Annotations of the lease of those that write the status of Services: which ones they announce.
const (
	classAnnotation = "stack-lb.tinkerbell.org/class"
	// a namespace, and names of Services behind a slash where it is not all of them; empty is all namespaces.
	watchAnnotation = "stack-lb.tinkerbell.org/watch"
)

// watches is what this stack-lb writes there.
func (o *Options) watches() string {
	if len(o.Services.Names) == 0 {
		return o.Watch
	}
	return o.Watch + "/" + strings.Join(o.Services.Names, ",")
}

// rival is another stack-lb of the same class, which keeps its leases in another namespace: two would each elect an
// owner of an address, and write the status of its Service in turn.
type rival struct {
	watch string
	born  meta.Time
	stamp meta.MicroTime // of its last renewal
	until time.Time      // when it ends without another one; zero: no renewal was seen yet
}

// lives reports whether its lease is renewed. One that was left behind, or that somebody has written once, is not.
func (r rival) lives() bool { return time.Now().Before(r.until) }

// keepsTo reports whether it announces a Service, and not all of the cluster. Its lease is in the namespace of the
// Service then: others may not speak for that.
func (r rival) keepsTo(place, namespace, name string) bool {
	where, names, some := strings.Cut(r.watch, "/")
	return where == namespace && place == namespace && (!some || slices.Contains(strings.Split(names, ","), name))
}

// rivalChanged tells of the lease of another stack-lb. It counts from its first renewal that is seen, until there is
// none.
func (c *Controller) rivalChanged(lease *coordination.Lease, deleted bool) {
	if lease.Name != statusLease || lease.Annotations[classAnnotation] != c.o.Services.Class {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	was, known := c.rivals[lease.Namespace]
	if deleted || lease.Spec.HolderIdentity == nil || *lease.Spec.HolderIdentity == "" || lease.Spec.RenewTime == nil {
		if delete(c.rivals, lease.Namespace); known && was.lives() {
			c.queue.Add(all)
		}
		return
	}
	next := rival{lease.Annotations[watchAnnotation], lease.CreationTimestamp, *lease.Spec.RenewTime, was.until}
	if known && next.stamp.After(was.stamp.Time) {
		next.until = time.Now().Add(c.o.Times.Lease)
		c.queue.AddAfter(all, c.o.Times.Lease+time.Millisecond) // it may have ended by then
	}
	c.rivals[lease.Namespace] = next
	if next.lives() != was.lives() || next.lives() && (was.watch != next.watch || !was.born.Equal(&next.born)) {
		c.queue.Add(all)
	}
}

// theirs is the namespace of the stack-lb that announces a Service in place of this one; empty is none. The one
// that watches only the Service's namespace, or names the Service, does, else the older one. It is known where this
// stack-lb announces the Services of all namespaces.
func (c *Controller) theirs(namespace, name string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	born := c.born
	if born.IsZero() {
		born = meta.Now()
	}
	winner := ""
	for place, r := range c.rivals {
		if !r.lives() {
			continue
		}
		older := cmp.Or(r.born.Compare(born.Time), strings.Compare(place, c.o.Namespace)) < 0
		if r.keepsTo(place, namespace, name) || r.watch == "" && older && winner == "" {
			winner = place
		}
	}
	return winner
}

// ourServices are those of type LoadBalancer that no other stack-lb announces.
func (c *Controller) ourServices() []*core.Service {
	var found []*core.Service
	for _, s := range c.allServices() {
		other := c.theirs(s.Namespace, s.Name)
		if other == "" {
			found = append(found, s)
		} else if c.o.Services.Ours(s) {
			c.logLimiter.WarnAt(time.Since(c.began).Nanoseconds(), "another stack-lb announces a service", func() []any {
				return []any{"namespace", s.Namespace, "service", s.Name, "its_namespace", other}
			})
		}
	}
	return found
}
