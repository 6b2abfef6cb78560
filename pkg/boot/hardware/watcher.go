// Package hardware knows the Hardware objects of Tinkerbell: which machine has which name, whether it may boot from
// the network, and which MAC is most like one that no object has. It writes Events on the objects, so that
// "kubectl describe hardware" tells how far a boot got. Without the Kubernetes API it knows nothing, says so once, and
// tries again.
package hardware

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"

	"github.com/tinkerbell/stack/internal/kube"
	"github.com/tinkerbell/stack/internal/loglimit"
	"github.com/tinkerbell/stack/pkg/boot/journal"
)

// Options are what a watcher needs.
type Options struct {
	// Config says how to reach the API; nil is the pod's service account. It needs the verbs get, list and watch on
	// hardware and workflows of tinkerbell.org, and create and patch on events, in each namespace.
	Config *rest.Config
	// Namespaces are where the objects are; empty is the pod's own.
	Namespaces []string
	// Pod is the pod's name, in Events.
	Pod     string
	Logger  *slog.Logger
	Metrics *Metrics
}

// Watcher follows the Hardware objects of some namespaces. It is a daemon.Task that never makes the process unready.
type Watcher struct {
	options             Options
	log                 *slog.Logger
	metrics             *Metrics
	hardware, workflows []cache.SharedIndexInformer // by namespace
	unreachable         error                       // why there are no informers
	change              atomic.Uint64               // counts the changes of Hardware objects
	closest             closest

	core     rest.Interface
	events   record.EventBroadcaster
	recorder record.EventRecorder
	steps    *rate.Limiter // of Events
}

// New makes a watcher, which knows nothing before Run.
func New(o Options) *Watcher {
	w := &Watcher{
		options: o, log: cmp.Or(o.Logger, slog.New(slog.DiscardHandler)), metrics: o.Metrics,
		steps:   rate.NewLimiter(stepsPerSecond, stepsAtOnce),
		closest: closest{searches: rate.NewLimiter(searchesPerSecond, searchesAtOnce)},
	}
	w.metrics = cmp.Or(w.metrics, NewMetrics(nil))
	w.startEvents()
	w.unreachable = w.connect()
	return w
}

// connect makes the informers, which ask nothing yet.
func (w *Watcher) connect() error {
	config, err := kube.Config(w.options.Config)
	if err != nil {
		return err
	}
	config = rest.CopyConfig(config)
	config.QPS, config.Burst = requestsPerSecond, requestsAtOnce
	objects, err := kube.Client(config, program, groupVersion, scheme)
	if err != nil {
		return err
	}
	if w.core, err = CoreClient(config); err != nil {
		return err
	}
	namespaces := w.options.Namespaces
	if len(namespaces) == 0 {
		own, err := kube.Namespace("")
		if err != nil {
			return err
		}
		namespaces = []string{own}
	}
	for _, namespace := range namespaces {
		f := follower{w: w, namespace: namespace, resource: resource}
		w.metrics.watching.WithLabelValues(namespace).Set(0)
		w.hardware = append(w.hardware, f.informer(
			kube.ListWatch[kube.List[object]](objects, namespace, resource, "", f.told), &object{}))
		g := follower{w: w, namespace: namespace, resource: "workflows"}
		w.workflows = append(w.workflows, g.informer(
			kube.ListWatch[kube.List[workflow]](objects, namespace, "workflows", "", g.told), &workflow{}))
	}
	return nil
}

// String implements daemon.Task.
func (*Watcher) String() string { return "hardware" }

// Ready implements daemon.Task: machines boot without it.
func (*Watcher) Ready() error { return nil }

// Run implements daemon.Task.
func (w *Watcher) Run(ctx context.Context) error {
	defer w.events.Shutdown()
	if w.unreachable != nil {
		w.log.Warn("failed to watch objects", "error", w.unreachable)
		<-ctx.Done()
		return nil
	}
	recording := w.events.StartRecordingToSink(&sink{ctx, w.core, w.metrics, loglimit.New(w.log, 1, warnEvery)})
	defer recording.Stop()
	ctx = quiet(ctx)
	var working sync.WaitGroup
	for _, each := range slices.Concat(w.hardware, w.workflows) {
		working.Go(func() { each.RunWithContext(ctx) })
	}
	working.Wait()
	return nil
}

// quiet silences client-go, which has an opinion on each error that is told of here once.
func quiet(ctx context.Context) context.Context { return klog.NewContext(ctx, klog.New(nil)) }

// Lookup implements the journal's Options.Hardware: what Kubernetes knows of a MAC, and whether it was asked.
func (w *Watcher) Lookup(mac [6]byte) (h journal.Hardware, asked bool) {
	all := find[*object](w.hardware, string(mac[:]))
	switch {
	case len(all) > 0:
		slices.SortFunc(all, func(a, b *object) int { return cmp.Compare(a.full(), b.full()) })
		p := all[0].port(mac)
		h = journal.Hardware{Known: true, Name: all[0].full(), Netboot: p.netboot, Arch: p.arch}
		if len(all) > 1 {
			h.Also = all[1].full()
		}
	case !synced(w.hardware): // nothing can be said of a MAC that is not there
		return h, false
	default:
		h.Closest = w.closestTo(mac)
	}
	h.Workflows = synced(w.workflows)
	if newest := w.workflowOf(mac, h.Name); newest != nil {
		h.Workflow, h.Workflows = &newest.job.Workflow, true
	}
	return h, true
}

// closestTo names the MAC that is most like one that no object has, and its object.
func (w *Watcher) closestTo(mac [6]byte) string {
	best := w.closest.of(mac, w.change.Load(), func(yield func(string) bool) {
		for _, each := range w.hardware {
			for _, key := range each.GetIndexer().ListIndexFuncValues(byMachine) {
				if !yield(key) {
					return
				}
			}
		}
	})
	if all := find[*object](w.hardware, best); len(all) > 0 {
		return fmt.Sprintf("%s (%s)", macText(best), all[0].full())
	}
	return ""
}

// workflowOf is the newest Workflow that names a machine; nil if none does.
func (w *Watcher) workflowOf(mac [6]byte, hardware string) *workflow {
	all := find[*workflow](w.workflows, string(mac[:]))
	if len(all) == 0 && hardware != "" {
		all = find[*workflow](w.workflows, hardware)
	}
	if len(all) == 0 {
		return nil
	}
	return slices.MinFunc(all, newest)
}

// maxExpected bounds how many machines are waited for at a time.
const maxExpected = 1000

// Expected implements the journal's Options.Expected: the machines that a Workflow waits for.
func (w *Watcher) Expected() (all []journal.Expected) {
	for _, each := range w.workflows {
		for _, given := range each.GetStore().List() {
			j, ok := given.(*workflow)
			if !ok || j.job.State != "" && j.job.State != "PENDING" {
				continue
			}
			for _, mac := range w.machinesOf(j) {
				h, _ := w.Lookup(mac)
				if h.Netboot && h.Workflow == &j.job.Workflow && len(all) < maxExpected {
					all = append(all, journal.Expected{MAC: mac, Since: j.CreationTimestamp.Time})
				}
			}
		}
	}
	return all
}

// machinesOf are the MACs of the machines that a Workflow names.
func (w *Watcher) machinesOf(j *workflow) (macs [][6]byte) {
	for _, key := range j.job.machines {
		if len(key) == 6 {
			macs = append(macs, [6]byte([]byte(key)))
			continue
		}
		for _, each := range w.hardware {
			given, _, _ := each.GetIndexer().GetByKey(key)
			if o, ok := given.(*object); ok {
				for _, p := range o.ports {
					macs = append(macs, p.mac)
				}
			}
		}
	}
	return macs
}

// find are the objects that an index has for a key.
func find[T any](informers []cache.SharedIndexInformer, key string) (all []T) {
	for _, each := range informers {
		found, _ := each.GetIndexer().ByIndex(byMachine, key) // every informer has this index
		for _, given := range found {
			if o, ok := given.(T); ok {
				all = append(all, o)
			}
		}
	}
	return all
}

// synced reports whether all namespaces were read.
func synced(informers []cache.SharedIndexInformer) bool {
	away := func(i cache.SharedIndexInformer) bool { return !i.HasSynced() }
	return len(informers) > 0 && !slices.ContainsFunc(informers, away)
}

// follower tells of the outages of one informer, each once.
type follower struct {
	w                   *Watcher
	namespace, resource string
	away, there         bool // what was told last
}

// informer keeps the objects of a list and a watch.
func (f *follower) informer(from cache.ListerWatcher, example runtime.Object) cache.SharedIndexInformer {
	made := cache.NewSharedIndexInformer(from, example, 0, cache.Indexers{byMachine: machinesOf})
	changed := func(change float64) {
		if f.resource == resource {
			f.w.change.Add(1)
			f.w.metrics.objects.Add(change)
		}
	}
	// None of these fails before the informer runs.
	_ = made.SetTransform(trim)
	_ = made.SetWatchErrorHandlerWithContext(func(context.Context, *cache.Reflector, error) {}) // told has heard of it
	_, _ = made.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { changed(1) }, UpdateFunc: func(any, any) { changed(0) }, DeleteFunc: func(any) { changed(-1) },
	})
	return made
}

// told hears of each answer of the API. Without Workflows much is told all the same: their outage is no more than a
// line.
func (f *follower) told(err error) {
	hardware := f.resource == resource
	switch {
	case err == nil && !f.there:
		f.w.log.Info("watching objects", "resource", f.resource, "namespace", f.namespace)
	case err != nil && !f.away:
		f.w.log.Warn("failed to watch objects", "resource", f.resource, "namespace", f.namespace, "error", err)
	}
	if f.there, f.away = err == nil, err != nil; !hardware {
		return
	}
	if err != nil {
		f.w.metrics.errors.WithLabelValues(f.namespace).Inc()
	}
	f.w.metrics.watching.WithLabelValues(f.namespace).Set(map[bool]float64{true: 1}[f.there])
}
