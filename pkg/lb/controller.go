package lb

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
	core "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"

	"github.com/tinkerbell/stack/internal/loglimit"
	"github.com/tinkerbell/stack/pkg/lb/address"
	"github.com/tinkerbell/stack/pkg/lb/elect"
	"github.com/tinkerbell/stack/pkg/lb/forward"
	"github.com/tinkerbell/stack/pkg/lb/probe"
	"github.com/tinkerbell/stack/pkg/lb/reason"
	"github.com/tinkerbell/stack/pkg/lb/service"
	"github.com/tinkerbell/stack/pkg/relay/socket"
)

// Controller follows the API and runs a task for each address. It is a daemon.Task.
type Controller struct {
	o          Options
	log        *slog.Logger
	logLimiter *loglimit.Limiter
	metrics    *Metrics
	began      time.Time
	queue      workqueue.TypedRateLimitingInterface[key] // of the plan alone
	statuses   workqueue.TypedRateLimitingInterface[key]
	events     record.EventRecorder

	services, endpoints, nodes, leaseCache cache.SharedIndexInformer
	synced                                 atomic.Bool

	ear     ear
	forward *forward.Manager // the listeners of Services in mode proxy

	status *elect.Elector // of the node that writes the status of Services
	writes atomic.Bool    // this node does

	working   sync.WaitGroup // the tasks of addresses
	addresses atomic.Int64   // how many there are
	questions *rate.Limiter  // of all addresses

	mu   sync.Mutex
	vips map[netip.Addr]*running
	// rivals are other stack-lb of the class that hold their status lease, by its namespace.
	rivals map[string]rival
	born   meta.Time // when our own status lease was made
	plan   service.Plan
	done   bool // no task is started any more
}

// running is a vip with its life.
type running struct {
	*vip
	stop      context.CancelFunc
	stopping  bool
	lease     string // its name
	announces bool   // and whether it announces the address
	told      string // the holder of whom those that write the status were told
	moved     bool   // there was one before
	// unannounced is since when nobody announces the address, as the node that writes the status sees it.
	unannounced time.Time
}

// key is what a piece of work is about: the status of one Service, or the plan of all.
type key struct{ namespace, name string }

// all is the key of the plan.
var all = key{}

var leaseLabels = map[string]string{managedBy: program}

// New makes a controller, which does nothing before Run.
func New(o Options) *Controller {
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	if o.Leases == nil {
		o.Leases = o.Client.CoordinationV1()
	}
	o.ProbeInterval = cmp.Or(o.ProbeInterval, probe.WatchInterval)
	c := &Controller{
		o: o, log: o.Logger, logLimiter: loglimit.New(o.Logger, 1, time.Minute),
		metrics: NewMetrics(o.Registerer), began: time.Now(),
		vips: map[netip.Addr]*running{}, rivals: map[string]rival{},
		queue: newQueue(), statuses: newQueue(),
	}
	c.questions = rate.NewLimiter(rate.Every(o.ProbeInterval/dutifulRate), questionBurst)
	c.ear = ear{host: o.Host, turn: c.questions.Wait}
	c.forward = forward.New(forward.Options{
		Bounds: o.Bounds, Changed: c.pokeAt, Logger: o.Logger, Registerer: o.Registerer,
	})
	c.status = elect.New(elect.Config{
		Leases: c.leases(), Name: statusLease, Labels: leaseLabels, Owner: o.LeaseOwner, Identity: o.Identity,
		Times: o.Times,
		Annotations: func() map[string]string {
			return map[string]string{classAnnotation: o.Services.Class, watchAnnotation: o.watches()}
		},
		Candidate: func() error { return nil },
		Renewed: func(context.Context, elect.Grant) error {
			if !c.writes.Swap(true) {
				c.enqueueStatus()
			}
			return nil
		},
		Withdraw:  func(error) (string, error) { c.writes.Store(false); return "", nil },
		Requested: c.requested,
	})
	return c
}

func newQueue() workqueue.TypedRateLimitingInterface[key] {
	return workqueue.NewTypedRateLimitingQueue(
		workqueue.NewTypedItemExponentialFailureRateLimiter[key](50*time.Millisecond, 10*time.Second))
}

// String implements daemon.Task.
func (*Controller) String() string { return "addresses" }

// Ready implements daemon.Task: the API has been read.
func (c *Controller) Ready() error {
	if !c.synced.Load() {
		return errors.New("the Kubernetes API has not been read yet")
	}
	return nil
}

// Run implements daemon.Task. It returns when all addresses are withdrawn and their leases released.
func (c *Controller) Run(ctx context.Context) error {
	broadcaster := c.startEvents()
	defer broadcaster.Shutdown()
	if err := c.makeInformers(); err != nil {
		return err
	}
	defer c.forward.Close()
	// What follows the API goes on until the addresses are withdrawn.
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	var following sync.WaitGroup
	defer following.Wait()
	defer end()
	for _, informer := range []cache.SharedIndexInformer{c.services, c.endpoints, c.nodes, c.leaseCache} {
		following.Go(func() { informer.RunWithContext(life) })
	}
	// A status that the API does not take must not keep the plan waiting.
	following.Go(func() { c.work(c.queue, func(key) error { c.replan(life); return nil }) })
	following.Go(func() { c.work(c.statuses, func(k key) error { return c.writeStatus(life, k) }) })
	following.Go(func() {
		<-life.Done()
		c.shutDown()
	})
	following.Go(func() {
		if err := socket.WatchLinks(life, c.linksChanged); err != nil {
			c.log.Warn("failed to follow the links of this host", "error", err)
		}
	})
	var leading sync.WaitGroup
	defer leading.Wait()
	if cache.WaitForCacheSync(ctx.Done(), c.services.HasSynced, c.endpoints.HasSynced, c.nodes.HasSynced,
		c.leaseCache.HasSynced) {
		c.synced.Store(true)
		c.queue.Add(all)
		leading.Go(func() { c.status.Run(ctx) })
	}
	<-ctx.Done()
	c.stopAll()
	c.working.Wait()
	leading.Wait()
	return nil
}

// shutDown ends the queues, which have goroutines of their own from the start.
func (c *Controller) shutDown() {
	c.queue.ShutDown()
	c.statuses.ShutDown()
}

// work does one piece after the other; what failed is done again, later each time.
func (c *Controller) work(queue workqueue.TypedRateLimitingInterface[key], do func(key) error) {
	for {
		k, shut := queue.Get()
		if shut {
			return
		}
		if err := do(k); err != nil {
			c.logLimiter.WarnAt(time.Since(c.began).Nanoseconds(), "failed to bring services up to date", func() []any {
				return []any{"namespace", k.namespace, "service", k.name, "error", err}
			})
			queue.AddRateLimited(k)
		} else {
			queue.Forget(k)
		}
		queue.Done(k)
	}
}

// replan makes the plan anew, and starts, changes and stops the tasks of addresses.
func (c *Controller) replan(ctx context.Context) {
	if !c.synced.Load() {
		return
	}
	plan := service.Make(c.ourServices(), c.o.Services)
	c.forward.Set(forward.State{Plan: plan, Slices: c.slices, Node: c.o.Node}) // before anybody stands as a candidate
	c.mu.Lock()
	if c.done {
		c.mu.Unlock()
		return
	}
	before := c.plan
	c.plan = plan
	c.addresses.Store(int64(len(plan.Addresses)))
	for ip, wish := range plan.Addresses {
		switch v := c.vips[ip]; {
		case v == nil:
			c.start(ctx, wish)
		case !v.stopping:
			v.set(wish)
		}
	}
	for ip, v := range c.vips {
		if plan.Addresses[ip] == nil && !v.stopping {
			v.stopping = true
			v.stop()
		}
	}
	c.mu.Unlock()
	refused := 0
	for name, wish := range plan.Wishes {
		if len(wish.Refused) > 0 {
			refused++
		}
		c.statuses.Add(key{name.Namespace, name.Name})
	}
	for name := range before.Wishes {
		if plan.Wishes[name] == nil {
			c.statuses.Add(key{name.Namespace, name.Name})
		}
	}
	c.metrics.refused.Set(float64(refused))
}

// start starts the task of an address. The caller holds mu.
func (c *Controller) start(ctx context.Context, wish *service.Address) {
	life, stop := context.WithCancel(context.WithoutCancel(ctx))
	v := &running{vip: newVIP(c, wish), stop: stop, lease: LeaseName(wish.IP)}
	c.vips[wish.IP] = v
	for _, object := range c.leaseCache.GetStore().List() {
		if lease := asLease(object); lease != nil && lease.Namespace == c.o.Namespace && lease.Name == v.lease {
			v.elector.Observe(lease, false)
		}
	}
	c.working.Go(func() {
		defer stop()
		v.run(life)
		c.mu.Lock()
		delete(c.vips, wish.IP)
		c.mu.Unlock()
		c.metrics.Forget(wish.IP.String())
		c.queue.Add(all) // a Service may ask for the address again already
	})
}

// stopAll stops the tasks of all addresses, and no other is started.
func (c *Controller) stopAll() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.done = true
	for _, v := range c.vips {
		v.stopping = true
		v.stop()
	}
}

// linksChanged is told of events about links and addresses, our own addresses' among them: each is put anew each
// second, which changes nothing for the others.
func (c *Controller) linksChanged(events []byte) {
	if address.Foreign(events) {
		c.o.Host.Changed()
		c.poke()
	}
}

// poke has every task look at what it depends on.
func (c *Controller) poke() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, v := range c.vips {
		v.elector.Poke()
	}
}

// pokeAt has the task of one address look.
func (c *Controller) pokeAt(ip netip.Addr) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if v := c.vips[ip]; v != nil {
		v.elector.Poke()
	}
}

// pokeFor has the tasks look that depend on the endpoints of a Service.
func (c *Controller) pokeFor(namespace, name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for ip, wish := range c.plan.Addresses {
		for _, s := range wish.Services {
			if v := c.vips[ip]; v != nil && s.Namespace == namespace && s.Name == name {
				v.elector.Poke()
			}
		}
	}
}

// requested is told of requests for leases.
func (c *Controller) requested(took time.Duration, err error) {
	result := "ok"
	if err != nil {
		result = "error"
	}
	if apierrors.IsForbidden(err) {
		c.logLimiter.WarnAt(time.Since(c.began).Nanoseconds(), "the API refuses a lease", func() []any {
			return []any{"error", err}
		})
	}
	c.metrics.requests.WithLabelValues(result).Observe(took.Seconds())
}

// event writes an Event on a Service.
func (c *Controller) event(s *core.Service, kind string, why reason.Reason, text string) {
	c.events.Event(s, kind, why.String(), text)
}

// slices are the EndpointSlices of a Service.
func (c *Controller) slices(s *core.Service) []*discovery.EndpointSlice {
	objects, _ := c.endpoints.GetIndexer().ByIndex(byService, s.Namespace+"/"+s.Name)
	found := make([]*discovery.EndpointSlice, 0, len(objects))
	for _, object := range objects {
		if slice, ok := object.(*discovery.EndpointSlice); ok {
			found = append(found, slice)
		}
	}
	return found
}

// node is what the API has of this node; nil if it is not known.
func (c *Controller) node() *core.Node {
	object, _, _ := c.nodes.GetStore().GetByKey(c.o.Node)
	node, _ := object.(*core.Node)
	return node
}

// cordoned reports whether this node is to get no new pods, since it is about to go.
func (c *Controller) cordoned() bool {
	node := c.node()
	return node != nil && node.Spec.Unschedulable
}

// excluded reports whether this node is kept from external load balancers by its label.
func (c *Controller) excluded() bool {
	node := c.node()
	return node != nil && meta.HasLabel(node.ObjectMeta, core.LabelNodeExcludeBalancers)
}
