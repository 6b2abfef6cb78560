package elect

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	coordination "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// FromAnnotation is of a lease that its holder has released: the stations where that holder has withdrawn. No other
// version of a lease has it. StationsAnnotation is of a lease that is held, and so is DoubtAnnotation.
// AnnouncedAnnotation has the holder's identity once it uses what the lease allows.
const (
	FromAnnotation      = "stack-lb.tinkerbell.org/released-from"
	StationsAnnotation  = "stack-lb.tinkerbell.org/stations"
	DoubtAnnotation     = "stack-lb.tinkerbell.org/doubt"
	AnnouncedAnnotation = "stack-lb.tinkerbell.org/announced"
)

// at is where a patch finds an annotation.
func at(annotation string) string {
	return "/metadata/annotations/" + strings.ReplaceAll(annotation, "/", "~1")
}

// releasedFrom is the station of the holder that has released a lease, empty if it was not released in order.
func releasedFrom(lease *coordination.Lease) string {
	if lease == nil || holder(lease) != "" {
		return ""
	}
	return lease.Annotations[FromAnnotation]
}

// version tells a version of a lease from all others, also where the API was restored from a backup and counts anew.
func version(lease *coordination.Lease) string {
	return lease.ResourceVersion + "-" + renewal(lease)
}

// holder is who holds a lease; nobody is empty.
func holder(lease *coordination.Lease) string {
	if lease.Spec.HolderIdentity == nil {
		return ""
	}
	return *lease.Spec.HolderIdentity
}

// maxDuration bounds how long a lease is waited for, whatever somebody has written into it. No holder's is longer.
const maxDuration = 15 * time.Minute

// duration is how long a lease is waited for: as long as its holder says, and never shorter than our own.
func (e *Elector) duration(lease *coordination.Lease) time.Duration {
	d := e.config.Times.Lease
	if s := lease.Spec.LeaseDurationSeconds; s != nil {
		d = max(d, min(time.Duration(*s)*time.Second, maxDuration))
	}
	return d
}

// record is what is to be written: the version that was seen with ourselves as its holder, or a new lease.
func (e *Elector) record(seen *coordination.Lease, acquired bool) *coordination.Lease {
	next := &coordination.Lease{ObjectMeta: meta.ObjectMeta{Name: e.config.Name, Labels: maps.Clone(e.config.Labels)}}
	if seen != nil {
		next = seen.DeepCopy()
		if next.Labels == nil {
			next.Labels = map[string]string{}
		}
		maps.Copy(next.Labels, e.config.Labels) // somebody may have taken them off
	}
	if e.config.Owner != nil { // the holder's: a run before may have had another, which is gone
		next.OwnerReferences = []meta.OwnerReference{*e.config.Owner}
	}
	stamp, seconds, transitions := e.nextStamp(), int32(e.config.Times.Lease/time.Second), int32(0)
	if next.Spec.LeaseTransitions != nil {
		transitions = *next.Spec.LeaseTransitions
	}
	if acquired && seen != nil && holder(seen) != e.config.Identity {
		transitions++
	}
	if acquired || next.Spec.AcquireTime == nil {
		next.Spec.AcquireTime = &stamp
	}
	next.Spec.HolderIdentity, next.Spec.LeaseDurationSeconds = &e.config.Identity, &seconds
	next.Spec.RenewTime, next.Spec.LeaseTransitions = &stamp, &transitions
	delete(next.Annotations, FromAnnotation)
	delete(next.Annotations, DoubtAnnotation)
	if acquired && e.config.Annotations != nil {
		for key, value := range e.config.Annotations() {
			meta.SetMetaDataAnnotation(&next.ObjectMeta, key, value)
		}
	}
	return next
}

// nextStamp is a time that no other request of this process has written.
func (e *Elector) nextStamp() meta.MicroTime {
	e.mu.Lock()
	defer e.mu.Unlock()
	now := time.Now().Truncate(time.Microsecond)
	if least := e.stamp.Add(time.Microsecond); now.Before(least) {
		now = least
	}
	e.stamp = now
	return meta.NewMicroTime(now)
}

// begin remembers the start of a request, which is now, by its stamp.
func (e *Elector) begin(next *coordination.Lease) time.Time {
	e.mu.Lock()
	defer e.mu.Unlock()
	start := time.Now()
	for stamp, other := range e.starts {
		if start.Sub(other) > 2*e.config.Times.Lease {
			delete(e.starts, stamp)
		}
	}
	e.starts[next.Spec.RenewTime.UnixMicro()] = start
	return start
}

// forget has no request that has begun count any more.
func (e *Elector) forget() {
	e.mu.Lock()
	defer e.mu.Unlock()
	clear(e.starts)
	e.credit = time.Time{}
}

// credited is the latest start of a request of ours that was written.
func (e *Elector) credited() time.Time {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.credit
}

// write creates or updates the lease. The API refuses an update of a version that is not the newest.
func (e *Elector) write(ctx context.Context, next *coordination.Lease) error {
	return e.request(ctx, func(ctx context.Context) (*coordination.Lease, error) {
		if next.ResourceVersion == "" {
			return e.config.Leases.Create(ctx, next, meta.CreateOptions{})
		}
		return e.config.Leases.Update(ctx, next, meta.UpdateOptions{})
	})
}

// extension is what a renewal changes, whatever the lease's version. So it need not know how the one before it has
// ended.
func (e *Elector) extension(next *coordination.Lease) []operation {
	operations := []operation{
		{"add", "/spec/renewTime", next.Spec.RenewTime},
		{"add", "/spec/leaseDurationSeconds", next.Spec.LeaseDurationSeconds},
	}
	if e.config.Annotations == nil {
		return operations
	}
	annotations := e.config.Annotations()
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.seen.lease != nil && len(e.seen.lease.Annotations) == 0 { // somebody has removed them, and nothing can be added
		operations = append(operations, operation{"add", "/metadata/annotations", struct{}{}})
	}
	for key, value := range annotations {
		if e.seen.lease != nil && e.seen.lease.Annotations[key] != value {
			operations = append(operations, operation{"add", at(key), value})
		}
	}
	return operations
}

// Doubt writes into the lease of another node that this one does not hear it, if that one has the lease still. It
// changes nothing of when the lease runs out. It may be called from any goroutine.
func (e *Elector) Doubt(ctx context.Context, holder, text string) error {
	return e.patch(ctx, holder, operation{"add", at(DoubtAnnotation), text})
}

// operation is one of a JSON patch (RFC 6902).
type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value"`
}

// patch changes the lease, whatever its version, if a node holds it. It is refused as invalid where another one does.
func (e *Elector) patch(ctx context.Context, holder string, operations ...operation) error {
	return e.change(ctx, slices.Insert(operations, 0, operation{"test", "/spec/holderIdentity", holder}))
}

// change changes the lease, whatever its version.
func (e *Elector) change(ctx context.Context, operations []operation) error {
	text, err := json.Marshal(operations)
	if err != nil {
		return err
	}
	return e.request(ctx, func(ctx context.Context) (*coordination.Lease, error) {
		return e.config.Leases.Patch(ctx, e.config.Name, types.JSONPatchType, text, meta.PatchOptions{})
	})
}

// request does one that writes the lease. It may take as long as what it asks for would be of use, and goes on when ctx
// is done, since it may succeed at the server when its client has gone.
func (e *Elector) request(ctx context.Context, do func(context.Context) (*coordination.Lease, error)) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), e.config.Times.Deadline)
	defer cancel()
	start := time.Now()
	written, err := do(ctx)
	e.config.Requested(time.Since(start), err)
	if err != nil {
		return fmt.Errorf("failed to write lease %s: %w", e.config.Name, err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	// An answer to a request of ours that is later than what was seen of us counts, whatever its version: the API's store
	// may have been restored from a backup.
	before := e.seen.lease
	later := before != nil && holder(before) == holder(written) && written.Spec.RenewTime != nil &&
		before.Spec.RenewTime != nil && written.Spec.RenewTime.After(before.Spec.RenewTime.Time)
	if before == nil || before.UID != written.UID || newer(written, before) || later {
		e.observe(written)
	}
	return nil
}

// look reads the lease.
func (e *Elector) look(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), e.config.Times.Deadline)
	defer cancel()
	start := time.Now()
	lease, err := e.config.Leases.Get(ctx, e.config.Name, meta.GetOptions{})
	e.config.Requested(time.Since(start), err)
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("failed to read lease %s: %w", e.config.Name, err)
	}
	if err != nil {
		lease = nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.observe(lease)
	return nil
}

// conflicts tells an answer that says that another version is there, from one that says nothing.
func conflicts(err error) bool {
	return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) ||
		apierrors.IsNotFound(err) || apierrors.IsInvalid(err)
}

// observe remembers a version that was not seen before, with the time. A lease that was deleted while another node held
// it counts as held for its time, since that node does not know yet. The caller holds mu.
func (e *Elector) observe(lease *coordination.Lease) {
	before := e.seen.lease
	switch {
	case lease != nil && before != nil && lease.UID == before.UID && lease.ResourceVersion == before.ResourceVersion:
		return
	case lease != nil && before != nil && lease.UID == before.UID && renewal(lease) == renewal(before):
		e.seen.lease = lease // something else has changed
		return
	case lease == nil && before != nil && before.ResourceVersion == "":
		return // known to be deleted
	case lease == nil && before != nil && holder(before) != "" && holder(before) != e.config.Identity:
		lease = before.DeepCopy()
		lease.UID, lease.ResourceVersion, lease.ManagedFields = "", "", nil
		lease.CreationTimestamp = meta.Time{}
	}
	e.seen = observation{known: true, lease: lease, at: time.Now()}
	if lease == nil || holder(lease) != e.config.Identity || lease.Spec.RenewTime == nil {
		return
	}
	if start, ours := e.starts[lease.Spec.RenewTime.UnixMicro()]; ours {
		e.seen.late = time.Since(start)
		if start.After(e.credit) {
			e.credit = start
		}
	}
}

// renewal tells renewals from all other changes of a lease: the holder, and its stamp, which no other request has.
func renewal(lease *coordination.Lease) string {
	if lease.Spec.RenewTime == nil {
		return lease.ResourceVersion
	}
	return strconv.FormatInt(lease.Spec.RenewTime.UnixMicro(), 10) + holder(lease)
}

// newer compares versions of one object. They are numbers (KEP-5504); where they are not, another one is newer.
func newer(a, b *coordination.Lease) bool {
	va, errA := strconv.ParseUint(a.ResourceVersion, 10, 64)
	vb, errB := strconv.ParseUint(b.ResourceVersion, 10, 64)
	if errA != nil || errB != nil {
		return a.ResourceVersion != b.ResourceVersion
	}
	return va > vb
}
