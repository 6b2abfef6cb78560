// Package hardware knows the Hardware objects of Tinkerbell: which machine has which name, whether it may boot from
// the network, and which MAC is most like one that no object has. It writes Events on the objects, so that
// "kubectl describe hardware" tells how far a boot got. Without the Kubernetes API it knows nothing, says so once, and
// tries again.
package hardware

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	core "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/tinkerbell/stack/internal/backoff"
	"github.com/tinkerbell/stack/pkg/boot/journal"
)

// namespaceFile tells a pod its own namespace.
const namespaceFile = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

// Time between two tries to reach the API, at first and at most.
const (
	firstWait = time.Second
	mostWait  = 30 * time.Second
)

// pageSize is how many objects are asked for at once where the API server does not stream them.
const pageSize = 250

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
	options Options
	log     *slog.Logger
	metrics *Metrics
	index   *index
	jobs    *jobs
	events  *events
}

// New makes a watcher, which knows nothing before Run.
func New(o Options) *Watcher {
	w := &Watcher{options: o, log: o.Logger, metrics: o.Metrics, index: newIndex(), jobs: &jobs{}}
	w.jobs.found = map[jobKey][]*job{}
	if w.log == nil {
		w.log = slog.New(slog.DiscardHandler)
	}
	if w.metrics == nil {
		w.metrics = NewMetrics(nil)
	}
	w.events = newEvents(w.log, w.metrics, o.Pod)
	return w
}

// String implements daemon.Task.
func (*Watcher) String() string { return "hardware" }

// Ready implements daemon.Task: machines boot without it.
func (*Watcher) Ready() error { return nil }

// Lookup implements the journal's Options.Hardware: what Kubernetes knows of a MAC, and whether it was asked.
func (w *Watcher) Lookup(mac [6]byte) (journal.Hardware, bool) {
	namespaces := max(len(w.options.Namespaces), 1)
	h, asked := w.index.lookup(mac, namespaces)
	h.Workflows = w.jobs.complete(namespaces)
	if j := w.jobs.newest(mac, h.Name); j != nil {
		h.Workflow, h.Workflows = &j.Workflow, true
	}
	return h, asked
}

// Expected implements the journal's Options.Expected: the machines that a Workflow waits for.
func (w *Watcher) Expected() (all []journal.Expected) {
	w.index.bootable(func(mac [6]byte, full string) {
		if j := w.jobs.newest(mac, full); j != nil && (j.State == "" || j.State == "PENDING") && len(all) < maxExpected {
			all = append(all, journal.Expected{MAC: mac, Since: j.made})
		}
	})
	return all
}

// maxExpected bounds how many machines are waited for at a time.
const maxExpected = 1000

// Run implements daemon.Task.
func (w *Watcher) Run(ctx context.Context) error {
	config, namespaces, err := Connect(w.options.Config, w.options.Namespaces)
	var objects, events rest.Interface
	if err == nil {
		objects, err = client(config, "/apis", groupVersion, scheme)
	}
	if err == nil {
		events, err = CoreClient(config)
	}
	if err != nil {
		w.log.Warn("failed to watch hardware", "error", err)
		<-ctx.Done()
		return nil
	}
	// The library has an opinion on each error that Run tells of in its own way.
	ctx = klog.NewContext(ctx, klog.New(nil))
	var working sync.WaitGroup
	for _, namespace := range namespaces {
		w.metrics.watching.WithLabelValues(namespace).Set(0)
		working.Go(func() { w.follow(ctx, objects, namespace) })
		working.Go(func() { w.followJobs(ctx, objects, namespace) })
	}
	working.Go(func() { w.events.run(ctx, events) })
	working.Wait()
	return nil
}

// Connect finds the API and the namespaces, where they are not given: by the pod's service account.
func Connect(config *rest.Config, namespaces []string) (*rest.Config, []string, error) {
	if config == nil {
		var err error
		if config, err = rest.InClusterConfig(); err != nil {
			return nil, nil, fmt.Errorf("failed to reach the Kubernetes API (a service account token is needed): %w", err)
		}
	}
	if len(namespaces) == 0 {
		text, err := os.ReadFile(namespaceFile)
		if err != nil {
			return nil, nil, fmt.Errorf("failed to find the pod's own namespace: %w", err)
		}
		namespaces = []string{strings.TrimSpace(string(text))}
	}
	return config, namespaces, nil
}

// client speaks one group of the API.
func client(c *rest.Config, path string, group schema.GroupVersion, types *runtime.Scheme) (rest.Interface, error) {
	config := rest.CopyConfig(c)
	config.APIPath = path
	config.GroupVersion = &group
	config.NegotiatedSerializer = serializer.NewCodecFactory(types).WithoutConversion()
	config.ContentType, config.AcceptContentTypes = runtime.ContentTypeJSON, runtime.ContentTypeJSON
	config.UserAgent = "stack-boots"
	config.QPS, config.Burst = eventsPerSecond, eventsAtOnce
	return rest.RESTClientFor(config)
}

// CoreClient speaks Kubernetes' own group of the API, as far as Events and Secrets.
func CoreClient(config *rest.Config) (rest.Interface, error) {
	return client(config, "/api", core.SchemeGroupVersion, coreScheme)
}

// follow reads and watches the Hardware objects of one namespace until ctx is done.
func (w *Watcher) follow(ctx context.Context, c rest.Interface, namespace string) {
	f, p := &follower{Watcher: w, namespace: namespace}, newPart(&w.index.table, entryOf)
	p.replaced, p.left = f.succeeded, w.metrics.left.Inc
	p.changed = func() { w.metrics.objects.Set(float64(p.objects())) }
	f.reflect(ctx, f.listerWatcher(c, resource, func() runtime.Object { return &list[object]{} }), &object{}, p)
}

// followJobs reads and watches the Workflows of one namespace until ctx is done. Without them much is told all the
// same, so that an outage is no more than a line.
func (w *Watcher) followJobs(ctx context.Context, c rest.Interface, namespace string) {
	f, p := &follower{Watcher: w, namespace: namespace, jobs: true}, newPart(&w.jobs.table, jobOf)
	p.replaced = f.succeeded
	f.reflect(ctx, f.listerWatcher(c, "workflows", func() runtime.Object { return &list[workflow]{} }), &workflow{}, p)
}

// reflect keeps a store until ctx is done.
func (f *follower) reflect(
	ctx context.Context, from cache.ListerWatcher, expected runtime.Object, store cache.ReflectorStore,
) {
	reflector := cache.NewReflectorWithOptions(from, expected, store, cache.ReflectorOptions{Name: "hardware"})
	reflector.WatchListPageSize = pageSize
	for pause := (backoff.Backoff{First: firstWait, Most: mostWait}); ctx.Err() == nil; pause.Wait(ctx) {
		f.good = false
		if err := reflector.ListAndWatchWithContext(ctx); err != nil && ctx.Err() == nil {
			f.failed(err)
		}
		if f.good {
			pause.Reset()
		}
	}
}

// follower is the state of one namespace's watch, used by its goroutine alone.
type follower struct {
	*Watcher
	namespace string
	jobs      bool // it follows Workflows
	told      bool // that it fails
	good      bool // that the last try read all objects
}

// failed tells of an outage once, and counts each try.
func (f *follower) failed(err error) {
	if !f.jobs {
		f.metrics.errors.WithLabelValues(f.namespace).Inc()
		f.metrics.watching.WithLabelValues(f.namespace).Set(0)
	}
	switch {
	case f.told:
	case f.jobs:
		f.log.Warn("failed to watch workflows", "namespace", f.namespace, "error", err)
	default:
		f.log.Warn("failed to watch hardware", "namespace", f.namespace, "error", err)
	}
	f.told = true
}

func (f *follower) succeeded() {
	f.told, f.good = false, true
	if f.jobs {
		f.log.Info("watching workflows", "namespace", f.namespace)
		return
	}
	f.log.Info("watching hardware", "namespace", f.namespace, "objects", f.index.objects())
	f.metrics.watching.WithLabelValues(f.namespace).Set(1)
}

// listerWatcher asks the API for the objects of the namespace.
func (f *follower) listerWatcher(c rest.Interface, resource string, list func() runtime.Object) cache.ListerWatcher {
	request := func(o meta.ListOptions) *rest.Request {
		return c.Get().Namespace(f.namespace).Resource(resource).VersionedParams(&o, runtime.NewParameterCodec(scheme))
	}
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o meta.ListOptions) (runtime.Object, error) {
			if o.ResourceVersion == "0" {
				o.ResourceVersion = "" // from the API server's cache, all would come in one answer
			}
			all := list()
			return all, request(o).Do(ctx).Into(all)
		},
		WatchFuncWithContext: func(ctx context.Context, o meta.ListOptions) (watch.Interface, error) {
			o.Watch = true
			w, err := request(o).Watch(ctx)
			return w, plain(err)
		},
	}
}

// plain leaves the reflector only those errors that it has to know: for others it would wait by itself, whether we
// are to stop or not.
func plain(err error) error {
	if err == nil || apierrors.IsResourceExpired(err) || apierrors.IsGone(err) || apierrors.IsTimeout(err) {
		return err
	}
	return errors.New(err.Error())
}
