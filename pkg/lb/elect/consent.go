package elect

import (
	"fmt"
	"slices"
	"strings"
	"time"

	coordination "k8s.io/api/coordination/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tinkerbell/stack/pkg/lb/consent"
)

// MembersAnnotation is of a lease that is held: the nodes whose consent its holder asks for while the API is away.
const MembersAnnotation = "stack-lb.tinkerbell.org/members"

// Consent is what an elector that goes by promises needs beside them.
type Consent struct {
	// Began is when the process did: it does not know what one before it has promised.
	Began time.Time
	// Here reports whether this node has from a process before what the lease allows.
	Here func() bool
}

// pledge is an elector's part in what nodes promise each other about its lease. Elector.mu guards it.
type pledge struct {
	candidate *consent.Candidate
	consented time.Time // the start of the last challenge to which all members have consented
	wish      []string  // the nodes that are to be listed
	from, to  string    // the list before and after a change that was sent: whether it was written is not known yet
	origin    string    // begins the stamps of lists that this process writes
	lists     int       // how many it has written
}

// consent are those of the lease, for the promises.
func (t Times) consent(lease time.Duration) consent.Times {
	margin := 2 * (consent.Patience - lease) / driftParts
	return consent.Times{Lease: lease, Patience: consent.Patience, Limit: consent.Patience - lease - margin}
}

// clock is a time of the process's clock, as the promises count.
func (e *Elector) clock(t time.Time) time.Duration { return t.Sub(e.config.Consent.Began) }

// patience is how long the lease of another node is waited for: longer by a node that its holder does not ask.
func (e *Elector) patience(lease *coordination.Lease) time.Duration {
	return listed(lease).Waits(e.config.Times.consent(e.duration(lease)), e.config.Node)
}

func listed(lease *coordination.Lease) consent.List {
	return consent.ParseList(lease.Annotations[MembersAnnotation])
}

// view is the lease as the promises see it. The caller holds mu.
func (e *Elector) view() consent.View {
	if e.seen.lease == nil {
		return consent.View{}
	}
	return consent.View{Holder: holder(e.seen.lease), Released: releasedFrom(e.seen.lease) != ""}
}

// lasts is how long a promise about the lease lasts. The caller holds mu.
func (e *Elector) lasts() time.Duration {
	if e.seen.lease == nil {
		return e.config.Times.Lease
	}
	return e.duration(e.seen.lease)
}

// promised is how long this node may not take the lease.
func (e *Elector) promised() time.Duration {
	if e.config.Consent == nil {
		return 0
	}
	here := e.Holder().Identity == e.config.Identity && e.config.Consent.Here()
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.pledge.candidate.Wait(e.clock(time.Now()), e.lasts(), e.view(), e.config.Identity, here)
}

// unbind ends what was promised to the holder that has released the lease.
func (e *Elector) unbind() {
	if e.config.Consent == nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.pledge.candidate.Freed()
}

// granted is the latest start of what this node may use: of a request that was written, or of a challenge to which
// all have consented. The caller holds mu.
func (e *Elector) granted() time.Time {
	if e.pledge.consented.IsZero() || e.credit.IsZero() {
		return e.credit
	}
	times := e.config.Times.consent(e.config.Times.Lease)
	return e.config.Consent.Began.Add(times.Start(e.clock(e.credit), e.clock(e.pledge.consented)))
}

// takes notes that this node is about to use what was granted, or reports that it may not, since it has promised.
func (e *Elector) takes(start time.Time) bool {
	if e.config.Consent == nil {
		return true
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	view := e.view()
	view.Holder = "" // it is here, or about to be
	if e.pledge.candidate.Wait(e.clock(time.Now()), e.lasts(), view, e.config.Identity, true) > 0 {
		return false
	}
	e.pledge.candidate.Uses(e.clock(start.Add(e.config.Times.Hold())))
	return true
}

// withdrawn notes that this node uses the lease no longer, unless it could not end what the lease allows.
func (e *Elector) withdrawn(err error) {
	e.mine = false
	if err != nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.pledge.candidate.Uses(0)
}

// Promise has this node consent that another one goes on as the holder, and reports whether it does.
func (e *Elector) Promise(holder string) bool {
	if e.config.Consent == nil || e.config.Consent.Here() {
		return false
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.pledge.candidate.Consent(e.clock(time.Now()), e.lasts(), e.view(), holder)
}

// Late reports whether renewals are not answered in time.
func (e *Elector) Late() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return time.Since(e.credit) > e.config.Times.Retry+e.config.Times.Retry/4
}

// Asked are the nodes whose consent counts, all of them; none where this node is not the holder, or nobody is listed.
func (e *Elector) Asked() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.seen.lease == nil || holder(e.seen.lease) != e.config.Identity {
		return nil
	}
	list := listed(e.seen.lease)
	if !e.wrote(list) {
		return nil
	}
	return list.Required(consent.ParseList(e.pledge.to))
}

// Consented tells that all have consented to a challenge.
func (e *Elector) Consented(start time.Time) {
	e.mu.Lock()
	later := start.After(e.pledge.consented)
	if later {
		e.pledge.consented = start
	}
	e.mu.Unlock()
	if later {
		e.Poke()
	}
}

// List tells which nodes are to be asked for consent: those that are heard.
func (e *Elector) List(nodes []string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.pledge.wish = nodes
}

// list writes the list of a new holder, which is empty: nobody is asked before the lease says so. A node that
// acquires its own lease keeps whom it asks, since it may be using their consent; under another stamp, so that a
// change which was sent before is not written any more. A released lease has none.
func (e *Elector) list(next, seen *coordination.Lease, acquired bool) {
	list := consent.List{Stamp: e.listStamp()}
	if seen != nil && holder(seen) == e.config.Identity {
		list.Nodes = listed(seen).Nodes
	}
	delete(next.Annotations, MembersAnnotation)
	if acquired && e.config.Consent != nil {
		meta.SetMetaDataAnnotation(&next.ObjectMeta, MembersAnnotation, list.String())
	}
}

// listStamp tells a list from all others of the lease, and whether this process has written it.
func (e *Elector) listStamp() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.nextList()
}

func (e *Elector) nextList() string {
	e.pledge.lists++
	return fmt.Sprintf("%s%d", e.pledge.origin, e.pledge.lists)
}

// wrote reports whether this process has written a list. Of that of a process before, a change may be under way that
// this one does not know of.
func (e *Elector) wrote(list consent.List) bool {
	return e.pledge.origin != "" && strings.HasPrefix(list.Stamp, e.pledge.origin)
}

// changesList is the change of the list that a renewal brings along. It is sent again until it is written: two
// changes at a time would be more to keep in mind.
func (e *Elector) changesList() (from, to string, changes bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.config.Consent == nil || e.seen.lease == nil || holder(e.seen.lease) != e.config.Identity {
		return "", "", false
	}
	p, now := &e.pledge, e.seen.lease.Annotations[MembersAnnotation]
	if p.from != now {
		p.from, p.to = "", ""
	}
	list := consent.ParseList(now)
	if p.to == "" && list.Stamp != "" && (!e.wrote(list) || !slices.Equal(list.Nodes, p.wish)) {
		next := consent.List{Stamp: e.nextList(), Nodes: p.wish}
		p.from, p.to = now, next.String()
	}
	return p.from, p.to, p.to != ""
}
