// Package elect decides which node holds a Lease: it acquires it, renews it while the node serves, gives it up, and
// releases it. What the lease allows ends before anybody else may take it; docs/design/decisions.md has the argument.
//
// No decision reads the times that are written in a Lease, nor the wall clock.
package elect

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	coordination "k8s.io/api/coordination/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Leases is what of the API's client is used, of one namespace.
type Leases interface {
	Get(context.Context, string, meta.GetOptions) (*coordination.Lease, error)
	Create(context.Context, *coordination.Lease, meta.CreateOptions) (*coordination.Lease, error)
	Update(context.Context, *coordination.Lease, meta.UpdateOptions) (*coordination.Lease, error)
	Patch(context.Context, string, types.PatchType, []byte, meta.PatchOptions, ...string) (*coordination.Lease, error)
}

// Config is what an elector needs. The functions are called by Run's goroutine.
type Config struct {
	Leases Leases
	// Name is the Lease's, and Labels are what it gets when it is created.
	Name   string
	Labels map[string]string
	// Owner is the object with which the Lease goes; nil is none.
	Owner *meta.OwnerReference
	// Identity names this node. Two nodes that run at one time never have the same.
	Identity string
	Times    Times
	// Undisputed reports whether no other station has what the lease allows. The holder then goes on while the API is
	// away, where nobody else can take the lease either; it is asked again all the time. nil is never.
	Undisputed func() bool
	// Serves reports whether the holder of a lease that has run out goes on without the API; nil is never.
	Serves func(context.Context) bool
	// Annotations are what stands in the lease while this node holds it; nil is none.
	Annotations func() map[string]string
	// Delay is how long this node leaves a lease that nobody holds to others; nil is not at all.
	Delay func() time.Duration
	// Prepare makes ready to use the lease of another node, from Lead before it runs out, and reports whether this node
	// need not leave it to others then. Its context ends where the lease changes meanwhile. nil is never.
	Prepare func(context.Context) bool
	Lead    time.Duration
	// Candidate says why this node may not hold the lease now, nor go on holding it.
	Candidate func() error
	// Renewed is called when the lease was acquired or renewed. The grant ends at its Start +
	// Times.Hold() unless Renewed is called again. An error gives the lease up.
	Renewed func(context.Context, Grant) error
	// Withdraw ends what the lease allows, for a reason. After an error the lease is not released. The station is
	// that where the lease was used, and stands in the released lease for the next holder; it may be empty.
	Withdraw func(why error) (station string, err error)
	// Requested is told of each request: how long it took, and its error. It may be nil.
	Requested func(time.Duration, error)
}

// Grant is a lease that was acquired or renewed.
type Grant struct {
	// Start is that of the request.
	Start time.Time
	// First says that the lease was acquired, not renewed.
	First bool
	// Alone says that the API has not renewed the lease: it is used for as long as that is undisputed.
	Alone bool
	// From is the station of the former holder, if that holder withdrew and then released the lease, and nobody has
	// held it since. It is empty otherwise, also where somebody else has removed the holder from the lease.
	From string
	// Former is the station of a holder that has not renewed the lease in time, and may use it until it hears of this
	// one.
	Former string
}

// Elector holds or awaits one Lease.
type Elector struct {
	config Config
	poke   chan struct{}

	// of Run's goroutine alone
	mine  bool
	alone bool      // the lease is used without the API
	start time.Time // of the request by which it was last renewed
	sent  time.Time // when the last renewal was
	tried bool      // Prepare was called before the lease that is awaited runs out
	first bool      // and has said so
	// late is the version of another node's lease that has run out while that node goes on, and since when this one
	// knows, by an answer of the API.
	late   string
	lateAt time.Time
	// unanswered says that the last request which was to acquire the lease was not answered.
	unanswered bool

	requests sync.WaitGroup // those that have begun, but for renewals
	renewals sync.WaitGroup

	mu    sync.Mutex
	seen  observation
	stamp time.Time // the last that was written
	// starts are those of the requests that may still be written, by their stamps, and credit is the latest start of one
	// that was: by the answer, or by the version that others saw.
	starts map[int64]time.Time
	credit time.Time
	// older says that a version was told of which is older than the one that was seen, and not since when.
	older bool
}

// observation is the version of the Lease that was last seen, and when by the monotonic clock.
type observation struct {
	known bool
	lease *coordination.Lease // nil if there is none
	at    time.Time
	// late is how long after its start a request of ours was seen to be written in this version; zero if it was not ours.
	late time.Duration
}

// errors of why a lease is given up.
var (
	ErrDeadline = errors.New("the lease could not be renewed in time")
	ErrDisputed = errors.New("the API is away, and another station has what the lease allows")
	ErrTaken    = errors.New("another node has taken the lease")
	ErrDeleted  = errors.New("the lease was deleted")
	ErrLeaving  = errors.New("this node leaves")
)

// New makes an elector, which does nothing before Run.
func New(c Config) *Elector {
	if c.Requested == nil {
		c.Requested = func(time.Duration, error) {}
	}
	if c.Delay == nil {
		c.Delay = func() time.Duration { return 0 }
	}
	return &Elector{config: c, poke: make(chan struct{}, 1), starts: map[int64]time.Time{}}
}

// Poke has Candidate asked again now, since something has changed. It may be called from any goroutine.
func (e *Elector) Poke() {
	select {
	case e.poke <- struct{}{}:
	default:
	}
}

// Observe tells of a version of the Lease, or that it was deleted. It may be called from any goroutine, and later than
// Run has seen a newer version.
func (e *Elector) Observe(lease *coordination.Lease, deleted bool) {
	e.mu.Lock()
	late := e.seen.lease != nil && !newer(lease, e.seen.lease)
	if late && lease.ResourceVersion != e.seen.lease.ResourceVersion && e.seen.lease.ResourceVersion != "" {
		e.older = true
	}
	if deleted { // the version of a deletion may be the last one that was written
		late = e.seen.lease != nil && e.seen.lease.UID != lease.UID
	}
	if !late {
		if deleted {
			lease = nil
		}
		e.observe(lease)
	}
	e.mu.Unlock()
	e.Poke()
}

// Holder is who holds a lease.
type Holder struct {
	Identity string // empty is nobody
	// Stations are those where it uses what the lease allows, if it has written StationsAnnotation.
	Stations string
	// Doubt is what another node says that does not hear it; see [Elector.Doubt].
	Doubt string
	// Announces says that it has written that it uses what the lease allows.
	Announces bool
	// Expired says that the lease was not renewed for the time that it says.
	Expired bool
	// Renewed is how long ago a renewal was seen.
	Renewed time.Duration
}

// Holder is who holds the lease as far as this node has seen.
func (e *Elector) Holder() Holder {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.seen.lease == nil {
		return Holder{}
	}
	renewed := time.Since(e.seen.at)
	return Holder{
		Identity: holder(e.seen.lease), Stations: e.seen.lease.Annotations[StationsAnnotation],
		Doubt:     e.seen.lease.Annotations[DoubtAnnotation],
		Announces: e.seen.lease.Annotations[AnnouncedAnnotation] == holder(e.seen.lease),
		Expired:   renewed > e.duration(e.seen.lease), Renewed: renewed,
	}
}

// Run holds the lease when it can until ctx is done, then withdraws and releases it.
func (e *Elector) Run(ctx context.Context) {
	for ctx.Err() == nil {
		e.doubt()
		if e.mine {
			e.hold(ctx)
		} else {
			e.stand(ctx)
		}
	}
	if e.mine || e.Holder().Identity == e.config.Identity {
		e.giveUp(ctx, ErrLeaving)
	}
	e.renewals.Wait()
	e.requests.Wait()
}

// doubt reads the lease where an older version was told of, and no newer one for a while: the API's store may have been
// restored from a backup, and count anew. What the API answers is what there is.
func (e *Elector) doubt() {
	e.mu.Lock()
	doubts := e.older && time.Since(e.seen.at) > 2*e.config.Times.Retry
	if doubts {
		e.older = false
	}
	e.mu.Unlock()
	if doubts {
		e.renewals.Go(func() {
			_ = e.look(context.Background()) // it is told of again with the next version
			e.Poke()
		})
	}
}

// stand waits as a candidate until something may have changed, or acquires the lease.
func (e *Elector) stand(ctx context.Context) {
	if e.config.Candidate() != nil {
		e.wait(ctx, e.config.Times.Retry)
		return
	}
	e.mu.Lock()
	seen, credit := e.seen, e.credit
	e.mu.Unlock()
	switch {
	case !seen.known:
		if e.look(ctx) != nil {
			e.wait(ctx, e.config.Times.Retry)
		}
		return
	case seen.lease != nil && holder(seen.lease) != "" && holder(seen.lease) != e.config.Identity:
		if e.awaits(ctx, seen) || !e.first && e.goesOn(ctx, seen) {
			return
		}
	case seen.lease == nil || holder(seen.lease) == "":
		if left := e.config.Delay() - time.Since(seen.at); left > 0 {
			e.wait(ctx, left)
			return
		}
	case time.Since(credit) < e.config.Times.Deadline: // written after this node had given up, and not too late
		e.take(ctx, credit, nil)
		return
	case seen.late > e.config.Times.Deadline-e.config.Times.Retry/2:
		// This node learns too late of its own writes, so they are of no use to it: another one's turn.
		if left := e.duration(seen.lease) + e.config.Times.Retry - time.Since(seen.at); left > 0 {
			e.wait(ctx, left)
			return
		}
	case time.Since(e.sent) < e.config.Times.Deadline: // it has it still, and a renewal is under way
		if time.Since(e.sent) >= e.config.Times.Retry {
			e.renew(ctx)
		}
		e.wait(ctx, e.config.Times.Retry-time.Since(e.sent))
		return
	}
	e.acquire(ctx, seen.lease)
}

// awaits waits for another node's lease to run out, or for a change, and reports whether there is something to wait for
// yet. The preparations for its use are made in its last moments, which changes nothing of when it may be
// acquired.
func (e *Elector) awaits(ctx context.Context, seen observation) bool {
	left := e.duration(seen.lease) - time.Since(seen.at)
	if e.config.Prepare != nil {
		if left > e.config.Lead {
			e.tried, e.first = false, false
			e.wait(ctx, left-e.config.Lead)
			return true
		}
		if !e.tried {
			e.tried = true
			e.first = e.prepare(ctx, seen)
			return true
		}
	}
	if !e.first {
		left += e.config.Delay()
	}
	if left > 0 {
		e.wait(ctx, left)
	}
	return left > 0
}

// goesOn reports whether the holder of a lease that has run out goes on without the API, and this node leaves it to
// that one: for a lease's time from an answer of the API on, in which it is there for the holder, too.
func (e *Elector) goesOn(ctx context.Context, seen observation) bool {
	if e.config.Serves == nil {
		return false
	}
	if e.late != version(seen.lease) {
		if e.look(ctx) != nil { // it is away for this node, too
			e.wait(ctx, e.config.Times.Retry)
			return true
		}
		if !e.config.Serves(ctx) {
			return false
		}
		e.late, e.lateAt = version(seen.lease), time.Now()
	}
	left := e.duration(seen.lease) - time.Since(e.lateAt)
	if left > 0 {
		e.wait(ctx, left)
	}
	return left > 0
}

// prepare calls Prepare, for as long as the lease is not renewed.
func (e *Elector) prepare(ctx context.Context, seen observation) bool {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	first := make(chan bool, 1)
	e.requests.Go(func() { first <- e.config.Prepare(ctx) })
	for {
		select {
		case is := <-first:
			return is
		case <-e.poke:
			e.mu.Lock()
			if !e.seen.at.Equal(seen.at) {
				stop()
			}
			e.mu.Unlock()
		}
	}
}

// acquire writes this node into the version of the lease that was seen, or into a new one. It renews already while it
// waits for the answer, unless there was none the last time: where that takes long, the grant would end before the
// first renewal could be answered.
func (e *Elector) acquire(ctx context.Context, seen *coordination.Lease) {
	next := e.record(seen, true)
	began := e.begin(next)
	e.sent = began
	own := seen != nil && holder(seen) == e.config.Identity // what was sent before it was given up may be written yet
	fresh := func() (credit time.Time, ok bool) {
		credit = e.credited()
		return credit, !credit.Before(began) || own && time.Since(credit) < e.config.Times.Deadline
	}
	answer := make(chan error, 1)
	e.requests.Go(func() { answer <- e.write(ctx, next) })
	ticker := time.NewTicker(e.config.Times.Retry / 2)
	defer ticker.Stop()
	for {
		select {
		case err := <-answer:
			e.unanswered = err != nil && !conflicts(err)
			if credit, ok := fresh(); ok {
				e.take(ctx, credit, seen)
				return
			}
			if conflicts(err) {
				err = e.look(ctx)
			}
			if err != nil {
				e.wait(ctx, e.config.Times.Retry)
			}
			return
		case <-e.poke:
			if credit, ok := fresh(); ok {
				e.take(ctx, credit, seen)
				return
			}
		case <-ticker.C:
			if !e.unanswered {
				e.renew(ctx)
			}
		}
	}
}

// take begins to use a lease that was acquired from a version, or given up too soon, which is nil.
func (e *Elector) take(ctx context.Context, start time.Time, from *coordination.Lease) {
	if ctx.Err() != nil {
		return // it leaves
	}
	e.mine, e.alone, e.start = true, false, start
	grant := Grant{Start: start, First: true, From: releasedFrom(from)}
	if from != nil && holder(from) != "" && holder(from) != e.config.Identity {
		grant.Former = from.Annotations[StationsAnnotation]
	}
	if err := e.config.Renewed(ctx, grant); err != nil {
		e.giveUp(ctx, err)
		e.wait(ctx, e.config.Times.Retry)
	}
}

// hold uses what was renewed, and waits until the next renewal is due, whether or not the last one was answered.
func (e *Elector) hold(ctx context.Context) {
	if err := e.config.Candidate(); err != nil {
		e.giveUp(ctx, err)
		return
	}
	e.mu.Lock()
	seen, credit, late := e.seen.lease, e.credit, e.seen.late
	e.mu.Unlock()
	if seen == nil || holder(seen) != e.config.Identity {
		e.lose(lostTo(seen))
		return
	}
	overdue := time.Since(credit) >= e.config.Times.Deadline-e.config.Times.Retry
	if overdue && e.config.Undisputed != nil {
		if undisputed := e.config.Undisputed(); e.alone && !undisputed {
			e.lose(ErrDisputed)
			return
		} else if undisputed && time.Since(e.start) >= e.config.Times.Retry {
			credit, e.alone = time.Now(), true
		}
	} else {
		e.alone = false
	}
	if credit.After(e.start) {
		e.start = credit
		if err := e.config.Renewed(ctx, Grant{Start: credit, Alone: e.alone}); err != nil {
			e.giveUp(ctx, err)
			return
		}
	}
	left := e.config.Times.Deadline - time.Since(e.start)
	if left <= 0 {
		e.lose(ErrDeadline)
		return
	}
	period := e.config.Times.pace(late)
	if e.overdue() && time.Since(e.start) > late+period+e.config.Times.Retry/4 { // answers do not come
		period = min(period, e.config.Times.Retry/2)
	}
	early := period - time.Since(e.sent)
	if early <= 0 {
		e.renew(ctx)
		return
	}
	e.wait(ctx, min(left, early))
}

// overdue reports whether renewals are not answered in time.
func (e *Elector) overdue() bool {
	return time.Since(e.credited()) > e.config.Times.Retry+e.config.Times.Retry/4
}

// renew sends a renewal, and does not wait for its answer.
func (e *Elector) renew(ctx context.Context) {
	next := e.record(nil, false)
	e.sent = e.begin(next)
	operations := e.extension(next)
	e.renewals.Go(func() {
		if err := e.patch(ctx, e.config.Identity, operations...); conflicts(err) {
			_ = e.look(ctx) // the next round sees who holds it
		}
		e.Poke()
	})
}

func lostTo(lease *coordination.Lease) error {
	if lease == nil {
		return ErrDeleted
	}
	return fmt.Errorf("%w: %s", ErrTaken, holder(lease))
}

// lose withdraws where the lease is no longer ours to release. An address that Withdraw cannot take away
// goes with the lease's time.
func (e *Elector) lose(why error) {
	_, _ = e.config.Withdraw(why) // it has said what is wrong
	if e.mine = false; !errors.Is(why, ErrDeadline) {
		e.forget()
	}
}

// giveUp withdraws, then releases the lease, so that another node may have it at once.
func (e *Elector) giveUp(ctx context.Context, why error) {
	station, err := e.config.Withdraw(why)
	e.mine = false
	e.forget() // a renewal that is under way does not outlive the release
	if err != nil {
		return // the lease ends by itself, and so does what it allows
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), e.config.Times.Deadline)
	defer cancel()
	for {
		e.mu.Lock()
		seen := e.seen.lease
		e.mu.Unlock()
		if seen == nil || holder(seen) != e.config.Identity {
			return
		}
		free := e.record(seen, false)
		nobody, short := "", int32(1)
		free.Spec.HolderIdentity, free.Spec.LeaseDurationSeconds = &nobody, &short
		if station != "" {
			meta.SetMetaDataAnnotation(&free.ObjectMeta, FromAnnotation, station)
		}
		err := e.write(ctx, free)
		if err == nil || !conflicts(err) || e.look(ctx) != nil {
			return
		}
	}
}

// wait waits for as long, or until something has changed.
func (e *Elector) wait(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-e.poke:
	case <-timer.C:
	}
}
