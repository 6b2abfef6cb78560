package lb

import (
	"context"
	"fmt"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tinkerbell/stack/pkg/lb/service"
)

// unneededFor is how long no Service has to ask for an address until its lease is deleted, if its holder has not done
// so.
const unneededFor = 30 * time.Second

// deleteLeases deletes the leases of addresses for which no Service asks any more, on the node that writes the status.
// A holder does that itself, unless it has died meanwhile.
func (c *Controller) deleteLeases(ctx context.Context, plan service.Plan) error {
	planned := map[string]bool{}
	for ip := range plan.Addresses {
		planned[LeaseName(ip)] = true
	}
	waits, since := false, map[string]time.Time{}
	for _, object := range c.leaseCache.GetStore().List() {
		lease := asLease(object)
		if lease == nil || lease.Namespace != c.o.Namespace || planned[lease.Name] ||
			!strings.HasPrefix(lease.Name, leasePrefix) {
			continue
		}
		first, known := c.unneeded[lease.Name]
		if !known {
			first = time.Now()
		}
		since[lease.Name] = first
		if time.Since(first) < unneededFor || !c.writes.Load() {
			waits = true
			continue
		}
		err := c.leases().Delete(ctx, lease.Name, meta.DeleteOptions{
			Preconditions: &meta.Preconditions{UID: &lease.UID, ResourceVersion: &lease.ResourceVersion},
		})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) && !apierrors.IsForbidden(err) {
			return fmt.Errorf("failed to delete lease %s: %w", lease.Name, err)
		}
	}
	c.unneeded = since
	if waits {
		c.queue.AddAfter(all, unneededFor)
	}
	return nil
}
