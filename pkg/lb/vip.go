package lb

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	core "k8s.io/api/core/v1"

	"github.com/tinkerbell/stack/pkg/frame"
	"github.com/tinkerbell/stack/pkg/lb/address"
	"github.com/tinkerbell/stack/pkg/lb/elect"
	"github.com/tinkerbell/stack/pkg/lb/probe"
	"github.com/tinkerbell/stack/pkg/lb/reason"
	"github.com/tinkerbell/stack/pkg/lb/service"
)

// vip is the task of one address on this node: it stands as a candidate for the address's lease, has the address on a
// link and announces it while it holds the lease, and watches the link for others that have it.
type vip struct {
	ip      netip.Addr
	c       *Controller
	log     *slog.Logger
	elector *elect.Elector

	mu       sync.Mutex
	wish     *service.Address
	link     address.Link // found last
	why      *reason.Error
	held     bool
	since    time.Time // when it began to be held
	until    time.Time // this node has failed to claim the address or to be heard, and lets others try until then
	failed   *reason.Error
	conflict []frame.MAC // who answered when this node was about to claim the address
	owners   []frame.MAC // who answered the last question
	asked    time.Time   // when that question was asked
	looked   bool        // it has asked, or cannot
	silent   int         // questions in a row that nobody answered while the lease was held
	silentAt time.Time   // when the first of them was

	ready     probed    // what was found out before the lease of another node ran out
	unheard   bool      // nobody on the link answered this node when it had the address
	judged    string    // the last doubt of another node
	alone     bool      // it has the address without the API, which ends where another station has it, too
	disputed  bool      // and one has
	contested int       // questions in a row that another station answered while this node had the address
	spoken    time.Time // when another station claimed the address, or was about to
	// strangers are the stations that have done so since the last question and did not hold the lease then, and sole is
	// when the last question was asked that anybody has answered, if that was the lease's holder alone.
	strangers map[frame.MAC]time.Time
	sole      time.Time
	announcer *announcer
	end       time.Time // that of the grant: from then on the address may be another node's

	// stale is set where connections were left open when the address went.
	stale atomic.Bool

	doubted time.Time // of the watch's goroutine: when this node has said that nobody answers

	// of the elector's goroutine
	holding     address.Link
	stopSending func()
	unserved    time.Time // when this node was last seen not to serve the address

	closing sync.WaitGroup // ports that are being closed
}

func newVIP(c *Controller, wish *service.Address) *vip {
	v := &vip{ip: wish.IP, c: c, wish: wish, log: c.log.With("address", wish.IP.String())}
	v.why, v.strangers = reason.Errorf(reason.Starting, "node %s has just started", c.o.Node), map[frame.MAC]time.Time{}
	v.elector = elect.New(elect.Config{
		Leases: c.leases(), Name: LeaseName(wish.IP), Labels: leaseLabels, Owner: c.o.LeaseOwner,
		Identity: c.o.Identity, Times: c.o.Times, Undisputed: v.undisputed, Serves: v.serves,
		Annotations: v.annotations, Delay: v.delay, Prepare: v.prepare, Lead: spread + probe.Lead, Candidate: v.candidate,
		Renewed: v.renewed, Withdraw: v.withdraw, Requested: c.requested,
	})
	return v
}

// run does the task until ctx is done.
func (v *vip) run(ctx context.Context) {
	var working sync.WaitGroup
	working.Go(func() { v.elector.Run(ctx) })
	working.Go(func() { v.watch(ctx) })
	working.Wait()
	v.closing.Wait()
}

// annotations tell the other nodes which stations answer for the address once this node has it, and whether it has.
func (v *vip) annotations() map[string]string {
	v.mu.Lock()
	defer v.mu.Unlock()
	announced := ""
	if v.held {
		announced = v.c.o.Identity
	}
	return map[string]string{elect.StationsAnnotation: v.link.Stations, elect.AnnouncedAnnotation: announced}
}

// at is the link of the address.
func (v *vip) at() address.Link {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.link
}

// set changes what is wished.
func (v *vip) set(wish *service.Address) {
	v.mu.Lock()
	v.wish = wish
	v.mu.Unlock()
	v.elector.Poke()
}

// candidate says why this node may not have the address.
func (v *vip) candidate() error {
	v.mu.Lock()
	wish, conflict, held, until, failed, looked := v.wish, v.conflict, v.held, v.until, v.failed, v.looked
	v.mu.Unlock()
	link, why := v.look(wish, held)
	if why == nil && held && link.Index != v.holding.Index {
		why = reason.Errorf(reason.LinkMissing, "node %s: the address is to move from link %s (%s) to %s (%s)",
			v.c.o.Node, v.holding.Name, v.holding.MAC, link.Name, link.MAC)
	}
	if why == nil && time.Now().Before(until) {
		why = failed
	}
	if why == nil && len(conflict) > 0 {
		why = v.inUse(conflict[0])
	}
	if why == nil && !looked {
		why = reason.Errorf(reason.Starting, "node %s has just started, and has not asked for %s yet", v.c.o.Node, v.ip)
	}
	v.mu.Lock()
	if v.why = why; link.Index != 0 {
		v.link = link
	}
	v.mu.Unlock()
	r := reason.Standby
	if why != nil {
		r = why.Reason
	}
	if !held {
		v.c.metrics.holds(v.ip, false, r)
	}
	if why == nil {
		return nil
	}
	return why
}

// followed is how long kube-proxy may take to follow the endpoints of a Service: it gathers changes for a second. Until
// then it drops what comes for an endpoint that has become ready, or sends it to the pod that was there before.
const followed = time.Second

// look finds the link for the address, or why this node does not serve it.
func (v *vip) look(wish *service.Address, held bool) (address.Link, *reason.Error) {
	if v.c.excluded() {
		return address.Link{}, reason.Errorf(reason.NodeExcluded,
			"node %s has the label %s", v.c.o.Node, core.LabelNodeExcludeBalancers)
	}
	why := service.Serves(wish, v.c.o.Node, v.c.slices)
	switch now := time.Now(); {
	case why != nil:
		v.unserved = now
	case !held && now.Sub(v.unserved) < followed:
		why = reason.Errorf(reason.NoEndpoint, "an endpoint has become ready just now")
	}
	if why != nil {
		return address.Link{}, reason.Errorf(why.Reason, "node %s: %s", v.c.o.Node, why.Text)
	}
	link, err := v.c.o.Host.Find(v.ip, wish.Interface)
	if err == nil {
		if why := v.c.forward.Fault(v.ip); why != nil {
			return link, reason.Errorf(why.Reason, "node %s: %s", v.c.o.Node, why.Text)
		}
		return link, nil
	}
	why, ok := errors.AsType[*reason.Error](err)
	if !ok {
		why = reason.Errorf(reason.KernelRefused, "%v", err)
	}
	return link, reason.Errorf(why.Reason, "node %s: %s", v.c.o.Node, why.Text)
}

func (v *vip) inUse(by frame.MAC) *reason.Error {
	return reason.Errorf(reason.AddressInUse,
		"node %s: %s answers for %s already: find that host, or ask for another address", v.c.o.Node, hardware(by), v.ip)
}

// stepBack has this node be no candidate for as long as others may need to find out that they can have the address.
func (v *vip) stepBack(r reason.Reason, err error) *reason.Error {
	why := reason.Errorf(r, "node %s: %v", v.c.o.Node, err)
	v.mu.Lock()
	defer v.mu.Unlock()
	v.until, v.failed = time.Now().Add(v.c.o.Times.Lease), why
	return why
}

// warn logs at times only.
func (v *vip) warn(link address.Link, message string, err error) {
	v.c.logLimiter.WarnAt(time.Since(v.c.began).Nanoseconds(), message, func() []any {
		return []any{"address", v.ip.String(), "link", link.Name, "error", err}
	})
}

// withdraw ends the announcement and removes the address. The stations are those that answered for it, if this node
// does not go on answering: somebody may have given it the address by hand.
func (v *vip) withdraw(why error) (stations string, err error) {
	if v.stopSending != nil {
		v.stopSending()
		v.stopSending = nil
	}
	// While the address is here their peers learn of it. Without the API nobody takes the address, and what is open may
	// go on when it is back.
	if v.stale.Store(errors.Is(why, elect.ErrDeadline)); !v.stale.Load() {
		v.c.forward.Cut(v.ip)
	}
	found, err := v.c.o.Host.Remove(v.ip)
	v.mu.Lock()
	held, here := v.held, v.link.Stations // which may have changed since it was claimed
	// Nobody else could have it before this lease ended. A process that stood still for longer probes again.
	if now := time.Now(); held && found && errors.Is(why, elect.ErrDeadline) && now.Before(v.end) {
		v.ready = probed{v.holding, now}
	}
	v.held, v.alone, v.announcer, v.why = false, false, nil, v.reasonOf(why)
	v.mu.Unlock()
	v.c.metrics.holds(v.ip, false, v.reasonOf(why).Reason)
	if err != nil {
		v.log.Error("failed to remove an address", "error", err)
	}
	if held || found {
		v.c.metrics.moves.WithLabelValues(v.ip.String(), "away").Inc()
		v.log.Info("withdrew address", "cause", why.Error())
	}
	if !held || err != nil {
		return "", err
	}
	if still, err := v.c.o.Host.Has(v.ip); still || err != nil {
		v.log.Warn("released an address that this node still has", "error", err)
		return "", nil
	}
	return here, nil
}

func (v *vip) reasonOf(err error) *reason.Error {
	if why, ok := errors.AsType[*reason.Error](err); ok {
		return why
	}
	r := reason.LeaseLost
	switch {
	case errors.Is(err, elect.ErrDisputed):
		r = reason.AddressInUse
	case errors.Is(err, elect.ErrDeadline):
		r = reason.APIAway
	case errors.Is(err, elect.ErrLeaving):
		r = reason.Stopping
	}
	return reason.Errorf(r, "node %s: %v", v.c.o.Node, err)
}
