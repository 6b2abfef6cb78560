package lb

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	core "k8s.io/api/core/v1"

	"github.com/tinkerbell/stack/pkg/frame"
	"github.com/tinkerbell/stack/pkg/lb/address"
	"github.com/tinkerbell/stack/pkg/lb/announce"
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
	until    time.Time // this node has failed to claim the address, and lets others try until then
	failed   *reason.Error
	conflict []frame.MAC // who answered when this node was about to claim the address
	owners   []frame.MAC // who answered the last question
	asked    time.Time   // when that question's round ended
	looked   bool        // it has asked, or cannot
	silent   int         // questions in a row that nobody answered while the lease was held
	silentAt time.Time   // when the first of them was

	ready     probed        // what was found out before the lease of another node ran out
	unheard   *reason.Error // nobody on the link answers this node, which had the address
	contested int           // questions in a row that another station answered while this node had the address
	strange   time.Time     // when another station claimed the address, or was about to
	announcer *announce.Announcer
	end       time.Time // that of the grant: from then on the address may be another node's

	// stale is set where connections were left open when the address went.
	stale atomic.Bool

	// of the watch's goroutine
	judged  string    // the last doubt of another node
	doubted time.Time // when this node has said that nobody answers

	// of the elector's goroutine
	holding     address.Link
	stopSending func()

	closing sync.WaitGroup // ports that are being closed
}

// probed is a link on which nobody had the address, at a time.
type probed struct {
	link address.Link
	at   time.Time
}

func newVIP(c *Controller, wish *service.Address) *vip {
	v := &vip{ip: wish.IP, c: c, wish: wish, log: c.log.With("address", wish.IP.String())}
	v.why = reason.Errorf(reason.Starting, "node %s has just started", c.o.Node)
	v.elector = elect.New(elect.Config{
		Leases: c.leases(), Name: LeaseName(wish.IP), Labels: leaseLabels, Owner: c.o.LeaseOwner,
		Identity: c.o.Identity, Times: c.o.Times, Node: c.o.Node,
		Consent:     c.council.elects(func() bool { return c.o.Host.Stray(v.ip) }),
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
	if err := v.elector.Delete(context.WithoutCancel(ctx)); err != nil {
		v.log.Warn("failed to delete a lease", "error", err)
	}
}

// annotations tell the other nodes which stations answer for the address once this node has it.
func (v *vip) annotations() map[string]string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return map[string]string{elect.StationsAnnotation: v.link.Stations}
}

// Times that a candidate leaves a free lease to others: up to spread, by the address and the node, so that addresses
// spread over the nodes; and longer where the node is about to go.
const (
	spread   = 100 * time.Millisecond
	cordoned = 2 * spread
)

// delay is how long this node leaves the free address to others.
func (v *vip) delay() time.Duration {
	sum := sha256.Sum256([]byte(v.ip.String() + " " + v.c.o.Node))
	d := time.Duration(binary.BigEndian.Uint32(sum[:])) * spread >> 32
	v.mu.Lock()
	unheard := v.unheard != nil
	v.mu.Unlock()
	if unheard || v.c.cordoned() {
		d += cordoned
	}
	return d
}

// readyFor is how long the address counts as one that nobody has after this node has probed for it, as long as it hears
// of no other station.
const readyFor = time.Second

// prepare probes for the address before the lease of another node runs out, so that it can be claimed then; the node
// with the shortest delay begins, and is the first.
func (v *vip) prepare(ctx context.Context) bool {
	link, wait := v.at(), v.delay()
	if wait >= spread {
		return false // another node's turn
	}
	port, err := v.c.o.Host.Open(link, v.ip)
	if err != nil {
		return false // it is tried again, and said, once the lease is here
	}
	defer v.closing.Go(func() { _ = port.Close() })
	own := func(mac frame.MAC) bool { return isAmong(mac, link.Stations) }
	first := probe.First(ctx, port, frame.MAC(link.MAC), own, wait)
	if first {
		v.mu.Lock()
		v.ready = probed{link, time.Now()}
		v.mu.Unlock()
	}
	return first
}

// isReady reports whether nobody had the address when this node probed for it a moment ago, and nobody was about to
// claim it since.
func (v *vip) isReady(link address.Link) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return link.Is(v.ready.link) && time.Since(v.ready.at) < readyFor && v.strange.Before(v.ready.at)
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
	unheard := v.unheard
	v.mu.Unlock()
	link, why := v.look(wish)
	if why == nil && held && !link.Is(v.holding) {
		why = reason.Errorf(reason.LinkMissing, "node %s: the address is to move from link %s (%s) to %s (%s)",
			v.c.o.Node, v.holding.Name, v.holding.MAC, link.Name, link.MAC)
	}
	if why == nil && !held && time.Now().Before(until) {
		why = failed
	}
	if why == nil && held && unheard != nil {
		why = unheard
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

// look finds the link for the address, or why this node does not serve it.
func (v *vip) look(wish *service.Address) (address.Link, *reason.Error) {
	if v.c.excluded() {
		return address.Link{}, reason.Errorf(reason.NodeExcluded,
			"node %s has the label %s", v.c.o.Node, core.LabelNodeExcludeBalancers)
	}
	if why := service.Serves(wish, v.c.o.Node, v.c.slices); why != nil {
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

// renewed keeps the address on the link for as long as no other node can hold the lease.
func (v *vip) renewed(ctx context.Context, g elect.Grant) error {
	v.mu.Lock()
	link := v.link
	v.mu.Unlock()
	v.c.metrics.consented.WithLabelValues(v.ip.String()).Set(boolean(g.Consented))
	if !g.First {
		return v.put(link, g.Start)
	}
	port, err := v.c.o.Host.Open(link, v.ip)
	if err != nil {
		v.warn(link, "failed to open a link", err)
		return v.stepBack(reason.KernelRefused, err)
	}
	if !v.free(g.From) && !v.isReady(link) {
		err = v.probe(ctx, link, port)
	}
	if err == nil {
		err = v.put(link, g.Start)
	}
	if err != nil {
		v.closing.Go(func() { _ = port.Close() })
		return err
	}
	v.claim(link, port)
	return nil
}

// put puts the address on the link, for what is left of a lease that was renewed at start.
func (v *vip) put(link address.Link, start time.Time) error {
	end := start.Add(v.c.o.Times.Hold())
	err := v.c.o.Host.Put(link, v.ip, end)
	switch {
	case err == nil:
		v.mu.Lock()
		v.end = end
		v.mu.Unlock()
		return nil
	case errors.Is(err, address.ErrTooLate):
		return reason.Errorf(reason.APIAway, "node %s: %v", v.c.o.Node, err)
	}
	v.warn(link, "failed to put an address on a link", err)
	return v.stepBack(reason.KernelRefused, err)
}

// free reports whether the address may be claimed without a probe: its former holder has removed it and released the
// lease, was the one station that answered the last question, a moment ago, and no other was about to claim it since.
func (v *vip) free(from string) bool {
	interval := v.interval()
	v.mu.Lock()
	defer v.mu.Unlock()
	return from != "" && len(v.owners) == 1 && isAmong(v.owners[0], from) &&
		time.Since(v.asked) < 2*interval && v.strange.Before(v.asked)
}

// isAmong reports whether a station is one of those that a node has written.
func isAmong(mac frame.MAC, stations string) bool {
	return slices.Contains(strings.Split(stations, ","), hardware(mac))
}

// probe asks the link whether somebody has the address, or is about to claim it.
func (v *vip) probe(ctx context.Context, link address.Link, port Port) error {
	own := func(mac frame.MAC) bool { return isAmong(mac, link.Stations) }
	by, err := probe.Conflict(ctx, port, frame.MAC(link.MAC), own)
	if err != nil {
		return v.stepBack(reason.LinkDown, err)
	}
	if by == nil {
		return nil
	}
	v.mu.Lock()
	v.conflict = []frame.MAC{*by}
	v.mu.Unlock()
	v.c.logLimiter.WarnAt(time.Since(v.c.began).Nanoseconds(), "address is in use", func() []any {
		return []any{"address", v.ip.String(), "link", link.Name, "mac", hardware(*by)}
	})
	return v.inUse(*by)
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

// claim begins to announce the address.
func (v *vip) claim(link address.Link, port Port) {
	v.holding = link
	announcer := announce.New(port.Announce, v.granted, func(err error) {
		if err != nil {
			v.log.Warn("failed to announce an address", "link", link.Name, "error", err)
		}
	}, v.c.o.AnnounceInterval)
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		announcer.Run(ctx)
	}()
	v.stopSending = func() {
		stop()
		<-done
		// The kernel waits for all its receivers before it closes a packet socket, and the next owner for us.
		v.closing.Go(func() { _ = port.Close() })
	}
	v.mu.Lock()
	v.held, v.since, v.silent, v.contested, v.announcer, v.unheard = true, time.Now(), 0, 0, announcer, nil
	services := v.wish.Services
	v.mu.Unlock()
	v.c.metrics.holds(v.ip, true, reason.Announced)
	v.c.metrics.moves.WithLabelValues(v.ip.String(), "here").Inc()
	v.log.Info("announcing address", "link", link.Name, "mac", link.MAC.String())
	for _, s := range services {
		v.c.event(s, core.EventTypeNormal, reason.Announced, "announcing "+v.ip.String()+" from node "+v.c.o.Node+
			", link "+link.Name+", MAC "+link.MAC.String())
	}
}

// granted reports whether the grant lasts: a process that has stood still since does not know yet that the address is
// another node's.
func (v *vip) granted() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return time.Now().Before(v.end)
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
	held := v.held
	if v.held && errors.Is(why, elect.ErrDeadline) { // nobody else can have it before this lease has ended
		v.ready = probed{v.holding, time.Now()}
	}
	v.held, v.announcer, v.why = false, nil, v.reasonOf(why)
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
	return v.holding.Stations, nil
}

func (v *vip) reasonOf(err error) *reason.Error {
	if why, ok := errors.AsType[*reason.Error](err); ok {
		return why
	}
	r := reason.LeaseLost
	switch {
	case errors.Is(err, elect.ErrDeadline):
		r = reason.APIAway
	case errors.Is(err, elect.ErrLeaving):
		r = reason.Stopping
	}
	return reason.Errorf(r, "node %s: %v", v.c.o.Node, err)
}
