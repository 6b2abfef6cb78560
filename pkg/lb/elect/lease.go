package elect

import (
	"context"
	"fmt"
	"maps"
	"strconv"
	"time"

	coordination "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// FromAnnotation is of a lease that its holder has released: the stations where that holder has withdrawn. No other
// version of a lease has it. StationsAnnotation is of a lease that is held.
const (
	FromAnnotation     = "stack-lb.tinkerbell.org/released-from"
	StationsAnnotation = "stack-lb.tinkerbell.org/stations"
)

// releasedFrom is the station of the holder that has released a lease, empty if it was not released in order.
func releasedFrom(lease *coordination.Lease) string {
	if lease == nil || holder(lease) != "" {
		return ""
	}
	return lease.Annotations[FromAnnotation]
}

// holder is who holds a lease; nobody is empty.
func holder(lease *coordination.Lease) string {
	if lease.Spec.HolderIdentity == nil {
		return ""
	}
	return *lease.Spec.HolderIdentity
}

// duration is how long a lease is waited for: as long as its holder says, and never shorter than our own.
func (e *Elector) duration(lease *coordination.Lease) time.Duration {
	d := e.config.Times.Lease
	if s := lease.Spec.LeaseDurationSeconds; s != nil {
		d = max(d, time.Duration(*s)*time.Second)
	}
	return d
}

// record is what is to be written: the version that was seen with ourselves as its holder, or a new lease.
func (e *Elector) record(seen *coordination.Lease, now time.Time, acquired bool) *coordination.Lease {
	next := &coordination.Lease{ObjectMeta: meta.ObjectMeta{Name: e.config.Name, Labels: maps.Clone(e.config.Labels)}}
	if seen != nil {
		next = seen.DeepCopy()
	}
	if e.config.Owner != nil { // the holder's: a run before may have had another, which is gone
		next.OwnerReferences = []meta.OwnerReference{*e.config.Owner}
	}
	stamp, seconds, transitions := meta.NewMicroTime(now), int32(e.config.Times.Lease/time.Second), int32(0)
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
	if acquired && e.config.Stations != nil {
		meta.SetMetaDataAnnotation(&next.ObjectMeta, StationsAnnotation, e.config.Stations())
	}
	return next
}

// write creates or updates the lease. The API refuses an update of a version that is not the newest. A request that has
// begun ends in its own time, since it may succeed at the server when its client has gone.
func (e *Elector) write(ctx context.Context, next *coordination.Lease) error {
	timeout := e.config.Times.request()
	if e.mine {
		timeout = min(timeout, e.config.Times.Deadline-time.Since(e.start))
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout)
	defer cancel()
	start := time.Now()
	var written *coordination.Lease
	var err error
	if next.ResourceVersion == "" {
		written, err = e.config.Leases.Create(ctx, next, meta.CreateOptions{})
	} else {
		written, err = e.config.Leases.Update(ctx, next, meta.UpdateOptions{})
	}
	e.config.Requested(time.Since(start), err)
	if err != nil {
		return fmt.Errorf("failed to write lease %s: %w", e.config.Name, err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.observe(written)
	return nil
}

// look reads the lease.
func (e *Elector) look(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, e.config.Times.request())
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
	return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err)
}

// observe remembers a version that was not seen before, with the time. A lease that was deleted while another node held
// it counts as held for its time, since that node does not know yet. The caller holds mu.
func (e *Elector) observe(lease *coordination.Lease) {
	before := e.seen.lease
	switch {
	case lease != nil && before != nil && lease.UID == before.UID && lease.ResourceVersion == before.ResourceVersion:
		return
	case lease == nil && before != nil && before.ResourceVersion == "":
		return // known to be deleted
	case lease == nil && before != nil && holder(before) != "" && holder(before) != e.config.Identity:
		lease = before.DeepCopy()
		lease.UID, lease.ResourceVersion, lease.ManagedFields = "", "", nil
		lease.CreationTimestamp = meta.Time{}
	}
	e.seen = observation{known: true, lease: lease, at: time.Now()}
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
