package elect

import (
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"time"

	coordination "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// api is one Lease in an API server, with its optimistic concurrency, and with delays and failures of the network: a
// request may reach the server late, even after its client has given up, and the answer may be lost.
type api struct {
	mu       sync.Mutex
	lease    *coordination.Lease
	version  int
	electors []*Elector
	away     bool
	delay    func() time.Duration // of a request and of an answer; nil is none
	lose     func() bool          // whether a request is lost, or its answer
	requests sync.WaitGroup
	renewals int
	busy     int // requests under way, and the most at a time
	busiest  int
	late     func(*Elector) time.Duration // how late a watch is, beside delay; nil is not at all
	answer   func() time.Duration         // how late an answer is, beside delay; nil is not at all
}

var resource = schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}

var errAway = errors.New("connection refused")

// do is the way of a request to the server and back. The server may get it though the client has gone.
func (a *api) do(ctx context.Context, handle func() (*coordination.Lease, error)) (*coordination.Lease, error) {
	type answer struct {
		lease *coordination.Lease
		err   error
	}
	answers := make(chan answer, 1)
	a.set(func() { a.busy++; a.busiest = max(a.busiest, a.busy) })
	defer a.set(func() { a.busy-- })
	a.requests.Go(func() {
		a.sleep()
		a.mu.Lock()
		var out answer
		if a.away || a.lose != nil && a.lose() {
			out = answer{nil, errAway}
		} else {
			out.lease, out.err = handle()
			if out.lease != nil {
				out.lease = out.lease.DeepCopy()
			}
			if a.lose != nil && a.lose() {
				out = answer{nil, errAway}
			}
		}
		a.mu.Unlock()
		a.sleep()
		a.mu.Lock()
		late := a.answer
		a.mu.Unlock()
		if late != nil {
			time.Sleep(late())
		}
		answers <- out
	})
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case out := <-answers:
		return out.lease, out.err
	}
}

// sleep calls delay without mu, which delay may take.
func (a *api) sleep() {
	a.mu.Lock()
	delay := a.delay
	a.mu.Unlock()
	if delay != nil {
		time.Sleep(delay())
	}
}

func (a *api) Get(ctx context.Context, name string, _ meta.GetOptions) (*coordination.Lease, error) {
	return a.do(ctx, func() (*coordination.Lease, error) {
		if a.lease == nil {
			return nil, apierrors.NewNotFound(resource, name)
		}
		return a.lease, nil
	})
}

func (a *api) Create(ctx context.Context, l *coordination.Lease, _ meta.CreateOptions) (*coordination.Lease, error) {
	l = l.DeepCopy()
	return a.do(ctx, func() (*coordination.Lease, error) {
		if a.lease != nil {
			return nil, apierrors.NewAlreadyExists(resource, l.Name)
		}
		l.UID = types.UID(strconv.Itoa(a.version))
		a.store(l)
		return a.lease, nil
	})
}

func (a *api) Update(ctx context.Context, l *coordination.Lease, _ meta.UpdateOptions) (*coordination.Lease, error) {
	l = l.DeepCopy()
	return a.do(ctx, func() (*coordination.Lease, error) {
		if a.lease == nil {
			return nil, apierrors.NewNotFound(resource, l.Name)
		}
		if l.ResourceVersion != a.lease.ResourceVersion {
			return nil, apierrors.NewConflict(resource, l.Name, errors.New("changed"))
		}
		a.store(l)
		return a.lease, nil
	})
}

func (a *api) Patch(ctx context.Context, name string, _ types.PatchType, text []byte, _ meta.PatchOptions, _ ...string) (*coordination.Lease, error) {
	var operations []struct {
		Op, Path string
		Value    json.RawMessage
	}
	if err := json.Unmarshal(text, &operations); err != nil {
		return nil, err
	}
	return a.do(ctx, func() (*coordination.Lease, error) {
		if a.lease == nil {
			return nil, apierrors.NewNotFound(resource, name)
		}
		l, err := a.lease.DeepCopy(), error(nil)
		for _, o := range operations {
			var was, value string
			switch o.Path {
			case "/spec/renewTime":
				a.renewals++
				err = errors.Join(err, json.Unmarshal(o.Value, &l.Spec.RenewTime))
				continue
			case "/metadata/annotations":
				l.Annotations = map[string]string{}
				continue
			case "/spec/leaseDurationSeconds":
				err = errors.Join(err, json.Unmarshal(o.Value, &l.Spec.LeaseDurationSeconds))
				continue
			case "/spec/holderIdentity":
				was = holder(l)
			default:
				was = l.Annotations[annotationOf(o.Path)]
			}
			err = errors.Join(err, json.Unmarshal(o.Value, &value))
			switch {
			case o.Op != "test" && l.Annotations == nil:
				return nil, apierrors.NewInvalid(schema.GroupKind{}, name, nil)
			case o.Op != "test":
				meta.SetMetaDataAnnotation(&l.ObjectMeta, annotationOf(o.Path), value)
			case was != value:
				return nil, apierrors.NewInvalid(schema.GroupKind{}, name, nil)
			}
		}
		if err != nil {
			return nil, err
		}
		a.store(l)
		return a.lease, nil
	})
}

func annotationOf(path string) string {
	return strings.ReplaceAll(strings.TrimPrefix(path, "/metadata/annotations/"), "~1", "/")
}

// store and remove tell those that watch, later. The caller holds mu.
func (a *api) store(l *coordination.Lease) {
	a.version++
	l.ResourceVersion = strconv.Itoa(a.version)
	a.lease = l
	a.tell(l.DeepCopy(), false)
}

func (a *api) remove() {
	a.version++
	last := a.lease
	a.lease = nil
	a.tell(last.DeepCopy(), true)
}

func (a *api) tell(l *coordination.Lease, deleted bool) {
	if a.away {
		return
	}
	for _, e := range a.electors {
		a.requests.Go(func() {
			a.sleep()
			a.mu.Lock()
			late := a.late
			a.mu.Unlock()
			if late != nil {
				time.Sleep(late(e))
			}
			e.Observe(l, deleted)
		})
	}
}

// holder is who holds the lease.
func (a *api) holder() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return holder(a.lease)
}

// exists tells whether there is a lease.
func (a *api) exists() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.lease != nil
}

// set changes the api under its lock.
func (a *api) set(change func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	change()
}

func random(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, seed)) }
