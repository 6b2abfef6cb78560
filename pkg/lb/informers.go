package lb

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	coordination "k8s.io/api/coordination/v1"
	core "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
	typedcoordination "k8s.io/client-go/kubernetes/typed/coordination/v1"
	typedcore "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
)

// byService is the index of EndpointSlices by their Service.
const byService = "service"

// source is a part of the API that can be listed and watched.
type source[L runtime.Object] interface {
	List(context.Context, meta.ListOptions) (L, error)
	Watch(context.Context, meta.ListOptions) (watch.Interface, error)
}

// informer follows a source, as far as the selectors say.
func informer[L runtime.Object](c *Controller, s source[L], example runtime.Object, label, field string,
	indexers cache.Indexers,
) cache.SharedIndexInformer {
	selected := func(o meta.ListOptions) meta.ListOptions {
		o.LabelSelector, o.FieldSelector = label, field
		return o
	}
	return cache.NewSharedIndexInformer(cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o meta.ListOptions) (runtime.Object, error) {
			return s.List(ctx, selected(o))
		},
		WatchFuncWithContext: func(ctx context.Context, o meta.ListOptions) (watch.Interface, error) {
			return s.Watch(ctx, selected(o))
		},
	}, c.o.Client), example, 0, indexers)
}

// makeInformers makes what follows the API, and says what each change has to be looked at for.
func (c *Controller) makeInformers() error {
	client := c.o.Client
	c.services = informer(c, client.CoreV1().Services(c.o.Watch), &core.Service{}, "",
		"spec.type="+string(core.ServiceTypeLoadBalancer), cache.Indexers{})
	c.endpoints = informer(c, client.DiscoveryV1().EndpointSlices(c.o.Watch), &discovery.EndpointSlice{},
		discovery.LabelServiceName, "", cache.Indexers{byService: func(object any) ([]string, error) {
			slice, ok := object.(*discovery.EndpointSlice)
			if !ok {
				return nil, nil
			}
			return []string{slice.Namespace + "/" + slice.Labels[discovery.LabelServiceName]}, nil
		}})
	c.nodes = informer(c, client.CoreV1().Nodes(), &core.Node{}, "",
		fields.OneTermEqualSelector(meta.ObjectNameField, c.o.Node).String(), cache.Indexers{})
	where := c.o.Namespace
	if c.o.Watch == "" {
		where = meta.NamespaceAll // another stack-lb may announce the same Services
	}
	c.leaseCache = informer(c, client.CoordinationV1().Leases(where), &coordination.Lease{},
		managedBy+"="+program, "", cache.Indexers{})
	plan := func(any, bool) { c.queue.Add(all) }
	for _, each := range []struct {
		informer cache.SharedIndexInformer
		changed  func(object any, deleted bool)
	}{{c.services, plan}, {c.endpoints, c.endpointsChanged}, {c.nodes, plan}, {c.leaseCache, c.leaseChanged}} {
		_, err := each.informer.AddEventHandler(onChange(each.changed))
		if err = errors.Join(err, each.informer.SetTransform(withoutManagers)); err != nil {
			return fmt.Errorf("failed to prepare to follow the API: %w", err)
		}
	}
	return nil
}

// onChange calls changed for each change, with the last known object where it was deleted.
func onChange(changed func(object any, deleted bool)) cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    func(object any) { changed(object, false) },
		UpdateFunc: func(_, object any) { changed(object, false) },
		DeleteFunc: func(object any) {
			if last, ok := object.(cache.DeletedFinalStateUnknown); ok {
				object = last.Obj
			}
			changed(object, true)
		},
	}
}

// withoutManagers leaves out of an object what takes most of it and nobody here reads. The object is copied, since its
// sender may still read it.
func withoutManagers(object any) (any, error) {
	if known, ok := object.(runtime.Object); ok {
		object = known.DeepCopyObject()
	}
	if accessor, ok := object.(meta.Object); ok {
		accessor.SetManagedFields(nil)
	}
	return object, nil
}

// leases is what electors use.
func (c *Controller) leases() typedcoordination.LeaseInterface {
	return c.o.Leases.Leases(c.o.Namespace)
}

// endpointsChanged tells those that depend on a Service's endpoints.
func (c *Controller) endpointsChanged(object any, _ bool) {
	slice, ok := object.(*discovery.EndpointSlice)
	if !ok {
		return
	}
	name := types.NamespacedName{Namespace: slice.Namespace, Name: slice.Labels[discovery.LabelServiceName]}
	c.pokeFor(name.Namespace, name.Name)
	c.mu.Lock()
	wish := c.plan.Wishes[name]
	c.mu.Unlock()
	if wish != nil && wish.Forward != nil {
		c.forward.Refresh(name)
		c.statuses.Add(key{name.Namespace, name.Name})
	}
}

func asLease(object any) *coordination.Lease {
	lease, _ := object.(*coordination.Lease)
	return lease
}

// leaseChanged tells the elector of a lease, and those that write the status.
func (c *Controller) leaseChanged(object any, deleted bool) {
	lease := asLease(object)
	if lease == nil {
		return
	}
	if lease.Namespace != c.o.Namespace {
		c.rivalChanged(lease, deleted)
		return
	}
	if lease.Name == statusLease {
		c.status.Observe(lease, deleted)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if lease.Name == statusLease {
		born := lease.CreationTimestamp
		if deleted {
			born = meta.Time{}
		}
		if !c.born.Equal(&born) { // which of two stack-lb is the older one goes by it
			c.born = born
			c.queue.Add(all)
		}
	}
	for ip, v := range c.vips {
		if v.lease != lease.Name {
			continue
		}
		v.elector.Observe(lease, deleted) // it may know the version already, having written it
		c.tellHolder(ip, v)
	}
}

// afterMove is how long the status of a Service waits where its address moves: it has the address already, and leases
// are more urgent, since a node may have had a hundred.
const afterMove = time.Second

// tellHolder has the status of an address's Services written where the address has another holder. The caller holds mu.
func (c *Controller) tellHolder(ip netip.Addr, v *running) {
	now := v.elector.Holder()
	holder := now.Identity
	address := c.plan.Addresses[ip]
	if now.Announces != v.announces && address != nil {
		v.announces = now.Announces
		for _, s := range address.Services {
			c.statuses.Add(key{s.Namespace, s.Name})
		}
	}
	if holder == v.told || address == nil {
		return // a mere renewal
	}
	wait := time.Duration(0)
	v.moved = v.moved || v.told != ""
	if v.told = holder; v.moved {
		wait = afterMove
	}
	for _, s := range address.Services {
		c.statuses.AddAfter(key{s.Namespace, s.Name}, wait)
	}
}

// allServices are those that the API has, of type LoadBalancer.
func (c *Controller) allServices() []*core.Service {
	var found []*core.Service
	for _, object := range c.services.GetStore().List() {
		if s, ok := object.(*core.Service); ok {
			found = append(found, s)
		}
	}
	return found
}

// enqueueStatus has the status of every Service looked at.
func (c *Controller) enqueueStatus() {
	for _, s := range c.allServices() {
		c.statuses.Add(key{s.Namespace, s.Name})
	}
}

// startEvents begins to write Events.
func (c *Controller) startEvents() record.EventBroadcaster {
	broadcaster := record.NewBroadcaster()
	broadcaster.StartRecordingToSink(&typedcore.EventSinkImpl{Interface: c.o.Client.CoreV1().Events(c.o.Watch)})
	c.events = broadcaster.NewRecorder(scheme.Scheme, core.EventSource{Component: program, Host: c.o.Node})
	return broadcaster
}
