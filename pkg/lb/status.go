package lb

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	core "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	conditions "k8s.io/apimachinery/pkg/api/meta"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/tinkerbell/stack/pkg/lb/reason"
	"github.com/tinkerbell/stack/pkg/lb/service"
)

// writeTimeout bounds a request that writes a status.
const writeTimeout = 5 * time.Second

// recheck is when the status of a Service without a holder is looked at again.
const recheck = 2 * time.Second

// writeStatus brings the status of one Service up to date, on the node that does that.
func (c *Controller) writeStatus(ctx context.Context, k key) error {
	if !c.writes.Load() || c.theirs(k.namespace, k.name) != "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	object, exists, err := c.services.GetStore().GetByKey(k.namespace + "/" + k.name)
	if err != nil {
		return err
	}
	s, ok := object.(*core.Service)
	if !exists || !ok {
		// It was deleted, or its type has changed.
		s, err = c.o.Client.CoreV1().Services(k.namespace).Get(ctx, k.name, meta.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("failed to read service %s/%s: %w", k.namespace, k.name, err)
		}
	}
	c.mu.Lock()
	plan := c.plan
	c.mu.Unlock()
	wish := plan.Wishes[types.NamespacedName{Namespace: k.namespace, Name: k.name}]
	status, changed := service.Without(s)
	if wish != nil {
		current := *wish
		current.Service = s
		holders := c.holders(wish.Addresses)
		status, changed = service.Status(&current, holders, plan.Forwards(wish, c.slices(s)))
		for _, h := range holders {
			if h.Node == "" {
				c.statuses.AddAfter(k, recheck)
				break
			}
		}
	}
	if !changed {
		return nil
	}
	next := s.DeepCopy()
	next.Status = status
	_, err = c.o.Client.CoreV1().Services(k.namespace).UpdateStatus(ctx, next, meta.UpdateOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case apierrors.IsConflict(err):
		c.statuses.AddAfter(k, 100*time.Millisecond) // the newer Service is on its way
		return nil
	case err != nil:
		return fmt.Errorf("failed to write the status of service %s/%s: %w", k.namespace, k.name, err)
	}
	c.tell(s, status)
	return nil
}

// unannounced is after how many leases' times an address that nobody announces is taken out of the status: kube-proxy
// diverts it on every node as long as it is there.
const unannounced = 5

// holders are the nodes that announce each address, or why none does, as this node sees it.
func (c *Controller) holders(addresses []netip.Addr) map[netip.Addr]service.Holder {
	c.mu.Lock()
	defer c.mu.Unlock()
	holders := map[netip.Addr]service.Holder{}
	for ip, h := range c.announcers(addresses) {
		v := c.vips[ip]
		switch {
		case v == nil:
		case h.Node != "":
			v.unannounced = time.Time{}
		case v.unannounced.IsZero():
			v.unannounced = time.Now()
		default:
			h.Gone = time.Since(v.unannounced) > unannounced*c.o.Times.Lease
		}
		holders[ip] = h
	}
	return holders
}

// announcers are as holders, but for how long. The caller holds mu.
func (c *Controller) announcers(addresses []netip.Addr) map[netip.Addr]service.Holder {
	holders := map[netip.Addr]service.Holder{}
	for _, ip := range addresses {
		v := c.vips[ip]
		if v == nil || v.stopping {
			holders[ip] = service.Holder{Why: reason.Errorf(reason.Starting, "node %s has just started", c.o.Node)}
			continue
		}
		h := v.elector.Holder()
		v.mu.Lock()
		switch node := nodeOf(h.Identity); {
		case h.Identity == "" || h.Expired || !h.Announces:
			holders[ip] = service.Holder{Why: v.why}
		case v.silent >= silentRounds:
			holders[ip] = service.Holder{Why: reason.Errorf(reason.Unheard,
				"node %s says that it does, and node %s hears no answer for it", node, c.o.Node)}
		default:
			holders[ip] = service.Holder{Node: node}
		}
		v.mu.Unlock()
	}
	return holders
}

// tell writes an Event where the condition says something else than before.
func (c *Controller) tell(s *core.Service, status core.ServiceStatus) {
	for _, kind := range []string{service.ConditionType, service.ForwardingType} {
		was := conditions.FindStatusCondition(s.Status.Conditions, kind)
		is := conditions.FindStatusCondition(status.Conditions, kind)
		if is == nil || is.Status == meta.ConditionTrue || was != nil && was.Reason == is.Reason {
			continue // the node that announces an address tells of that
		}
		c.events.Event(s, core.EventTypeWarning, is.Reason, is.Message)
	}
}
