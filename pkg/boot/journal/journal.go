package journal

import (
	"cmp"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tinkerbell/stack/internal/list"
	"github.com/tinkerbell/stack/pkg/boot"
)

// Journal keeps machines and their boots, within its limits. One goroutine records and ticks, any number reads.
type Journal struct {
	options Options

	mu           sync.RWMutex
	ids          map[string]*machine
	macs         map[[6]byte]*machine
	uuids        map[[16]byte]*machine
	addresses    map[netip.Addr]binding
	byRank       [ranks]list.List[*machine]
	withOldBoots list.List[*machine]   // machines with boots that are over: they make room before those of rank serviced
	active       map[*machine]struct{} // machines whose newest boot goes on
	bytes        int                   // of all machines, estimated; account adds what one has grown by
	scene        scene                 // what is known of all machines together
	askedAt      time.Time             // when Kubernetes was asked about machines last
	forgotten    atomic.Uint64         // machines that made room

	version atomic.Uint64
	dirty   bool     // something has changed since the version did
	changes []Change // to be told once the lock is free; the goroutine that records has these for itself
}

// New makes an empty journal.
func New(o Options) *Journal {
	o.Limits = o.Limits.withDefaults()
	return &Journal{
		options: o, ids: map[string]*machine{}, macs: map[[6]byte]*machine{}, uuids: map[[16]byte]*machine{},
		addresses: map[netip.Addr]binding{}, active: map[*machine]struct{}{}, scene: newScene(),
	}
}

// Record takes the next event, and its time for the present one. Events come in the order of their times, as far as the
// caller can put them so.
func (j *Journal) Record(e *boot.Event) {
	j.mu.Lock()
	if m := j.machineOf(e); m != nil {
		m.heard = max(m.heard, e.At)
		switch e.Kind {
		case boot.DHCPRequest:
			j.dhcpRequest(m, e)
		case boot.DHCPReply:
			j.dhcpReply(m, e)
		case boot.TFTP, boot.HTTP, boot.Stream:
			j.served(m, e)
		case boot.Syslog:
			j.syslog(m, e)
		}
		if len(m.boots) > 0 {
			j.settle(m, e.At)
			j.touched(m)
			j.dirty = true
			j.shrink(m)
		} else {
			j.remove(m) // It was made for what is no part of a boot, as a lease that is renewed.
		}
	}
	j.mu.Unlock()
	j.deliver()
}

// Tick tells the time, so that silence can mean something. It is to be called about once a second, by the goroutine
// that records.
func (j *Journal) Tick(now time.Time) {
	j.mu.Lock()
	if j.options.Witness != nil {
		j.scene.hear(j.options.Witness(), now.UnixNano())
	}
	if now.Sub(j.askedAt) >= askEach {
		j.askedAt = now
		j.prove(now.UnixNano())
		j.expect(now)
	}
	j.scene.count(j.active)
	for m := range j.active {
		if j.settle(m, now.UnixNano()) {
			j.dirty = true
			j.account(m)
		}
	}
	j.shrink(nil)
	j.mu.Unlock()
	j.deliver()
}

// settle brings the state and the cause of a machine up to date, and tells whether they, or the cause's text, changed.
func (j *Journal) settle(m *machine, now int64) bool {
	b := m.newest()
	if b == nil || m.forgotten {
		delete(j.active, m)
		return false
	}
	before, old := b.state, b.cause
	j.noteSuccess(m, b, now)
	proven, done := j.finished(m, b, now)
	var r *rule
	var cause *Cause
	// A boot that is done may only seem so, because of what another machine behind the same router loaded, or because the
	// machine boots again and again. Then a cause is looked for, too.
	if !done || m.nat.IsValid() || m.loops() >= maxLoops {
		r, cause = j.causeOf(m, b, now)
	}
	silent := now-b.lastHeard >= waitSilent && b.oldestOpen() == nil
	held := r != nil && !r.mild // a cause holds the machine up
	switch {
	case proven && !held:
		b.state = Booted
	case done && !held:
		b.state = Installed
	case held && (silent || r.name == "workflow-failed"): // it is over, and a cause is known
		b.state = StateFailed
	case silent: // it is over, and no cause is known
		b.state = Quiet
	case held: // what goes on
		b.state = Stuck
	default:
		b.state = Booting
	}
	if b.rule != r {
		b.rule, b.causeStep = r, b.furthest
		if r != nil && b.facts.failed.step != "" {
			b.causeStep = b.facts.failed.step
		}
	}
	b.setCause(cause, now)
	// A step of DHCP that is not answered has no end that could tell its result, as a transfer has: its cause does.
	if st := b.last(b.furthest); st != nil && cause != nil && b.furthest.isDHCP() && st.result == Going {
		st.result = Failed
	}
	if name(old) != name(b.cause) {
		j.tell(Change{Kind: CauseChanged}, m, b, now)
	}
	if b.state != before {
		j.tell(Change{Kind: StateChanged, Before: before}, m, b, now)
	}
	j.tellSteps(m, b, now)
	if b.state.over() {
		j.endBoot(m, b, now)
		delete(j.active, m)
	} else {
		j.active[m] = struct{}{}
	}
	return b.state != before || b.cause != old
}

// endWait is how long after its connection's end an agent may connect again, and agentWait how long it may ask for
// nothing, before its work is done.
const (
	endWait   = 20 * time.Second
	agentWait = time.Minute
)

// installed tells whether the boot before the newest one ended as it should.
func (m *machine) installed() bool {
	return len(m.boots) > 1 && m.boots[len(m.boots)-2].state.done()
}

// finished tells whether a boot's work is done, and whether that is proven: by the success of the machine's Workflow,
// or by a boot from disk of a machine that Kubernetes knows, and that no Workflow has work for. A sight without
// proof counts where there is no Workflow to ask: one that waits, runs or failed knows better.
func (j *Journal) finished(m *machine, b *bootRecord, now int64) (proven, done bool) {
	known, w := j.workflowOf(m)
	switch {
	case b.succeeded:
		return true, true
	case w != nil:
		// Whether it succeeded in this boot is not known after a restart: the agent's work, or the disk's, tells.
		proven = w.is("SUCCESS") && (b.facts.fromDisk || b.worked(now))
		return proven, proven
	case b.facts.fromDisk:
		return known, true
	}
	return false, b.worked(now)
}

// worked tells whether a boot's agent got through its work, as far as that can be seen: its connection ended, in order
// or because the machine was switched off, restarted, or started another kernel; or what it installed runs.
func (b *bootRecord) worked(now int64) bool {
	a := &b.facts.agent
	switch {
	case b.othersRun:
		return true
	case !a.done() || b.facts.failed.step == Agent || b.facts.failed.step == Files || a.short >= shortStreams:
		return false
	case a.reported:
		return now-a.called >= int64(agentWait)
	default:
		return now-a.finished >= int64(endWait)
	}
}

// noteSuccess notes whether the machine's Workflow succeeded in this boot.
func (j *Journal) noteSuccess(m *machine, b *bootRecord, now int64) {
	if j.options.Hardware == nil || b.succeeded {
		return
	}
	switch _, w := j.workflowOf(m); {
	case !w.is("SUCCESS"):
		b.sawUnfinished = w != nil
	case !b.sawUnfinished: // as it was before this boot
	case b.succeededAt == 0:
		b.succeededAt = now
	default:
		b.succeeded = now-b.succeededAt >= int64(successWait)
	}
}

// workflowOf tells whether Kubernetes knows a machine, by any of its MACs, and which Workflows there are, and the
// Workflow that names it; nil if there is none.
func (j *Journal) workflowOf(m *machine) (known bool, w *Workflow) {
	if j.options.Hardware == nil {
		return false, nil
	}
	for _, mac := range m.macs {
		h, knows := j.options.Hardware(mac)
		if known = known || knows && h.Known && h.Workflows; knows && h.Workflow != nil {
			return true, h.Workflow
		}
	}
	return known, nil
}

// successWait is how long after its success a Workflow's last events may come.
const successWait = 2 * time.Second

// over tells whether nothing more is expected of a boot in a state.
func (s State) over() bool { return s.done() || s == Quiet || s == StateFailed }

// askEach is how often is asked what Kubernetes knows of machines whose boot is over, or was not seen, and expectWait
// how long one is waited for.
const (
	askEach    = 10 * time.Second
	expectWait = 5 * time.Minute
)

// prove looks for a proof of what was installed as far as seen: after a restart boots are told again before Kubernetes
// has answered.
func (j *Journal) prove(now int64) {
	if j.options.Hardware == nil {
		return
	}
	for _, m := range j.ids {
		if b := m.newest(); b != nil && b.state == Installed {
			if proven, _ := j.finished(m, b, now); proven {
				j.active[m] = struct{}{}
			}
		}
	}
}

// expect makes machines of those that Kubernetes waits for and that nothing was heard of.
func (j *Journal) expect(now time.Time) {
	if j.options.Expected == nil {
		return
	}
	for _, x := range j.options.Expected() {
		lost := j.scene.gap(relays, x.Since.UnixNano()) != ""
		if j.macs[x.MAC] != nil || now.Sub(x.Since) < expectWait && !lost {
			continue
		}
		m := j.byMAC(x.MAC, [16]byte{})
		if m == nil {
			continue
		}
		e := boot.Event{At: x.Since.UnixNano(), MAC: x.MAC}
		j.newBoot(m, &e).expected = true
		j.touched(m)
		j.dirty = true
	}
}

// setCause sets a cause, which is the same one as long as its name is.
func (b *bootRecord) setCause(c *Cause, now int64) {
	switch {
	case c == nil:
		b.cause = nil
		return
	case c == b.cause:
		return
	case b.cause != nil && b.cause.Name == c.Name:
		if c.Text == b.cause.Text && c.Certain == b.cause.Certain && slices.Equal(c.Others, b.cause.Others) {
			return
		}
		c.Since = b.cause.Since
	default:
		c.Since = time.Unix(0, now).UTC()
	}
	b.cause = c
}

func name(c *Cause) string {
	if c == nil {
		return ""
	}
	return c.Name
}

// endBoot tells once that nothing more is expected of a boot.
func (j *Journal) endBoot(m *machine, b *bootRecord, at int64) {
	if b.ended {
		return
	}
	b.ended = true
	for i := range b.steps {
		if s := &b.steps[i]; s.result == Going {
			s.result = Failed
			if b.state.done() {
				s.result = OK
			}
		}
	}
	j.tellSteps(m, b, at)
	j.tell(Change{Kind: BootEnded}, m, b, at)
}

// tellSteps tells of the steps that have ended: those with a result, but for a boot's last step that went well, which
// may go on as long as the machine boots.
func (j *Journal) tellSteps(m *machine, b *bootRecord, at int64) {
	for i := range b.steps {
		s := &b.steps[i]
		if s.result == Going || s.result == s.told || i == len(b.steps)-1 && b.state == Booting && s.result == OK {
			continue
		}
		s.told = s.result
		c := Change{Kind: StepEnded, Step: s.view(nil)}
		c.Step.Answers = b.answersOf(i)
		j.tell(c, m, b, at)
	}
}

// tell notes a change of a boot, to be told once the lock is free.
func (j *Journal) tell(c Change, m *machine, b *bootRecord, at int64) {
	if j.options.Changed != nil {
		c.At, c.Machine, c.Boot = moment(at), j.view(m), b.view(c.Kind == BootEnded)
		j.changes = append(j.changes, c)
	}
}

// deliver tells of all changes, without the lock.
func (j *Journal) deliver() {
	for i := range j.changes {
		j.options.Changed(j.changes[i])
	}
	clear(j.changes)
	j.changes = j.changes[:0]
	if j.dirty {
		j.dirty = false
		j.version.Add(1)
	}
}

// Version is another one whenever something of a machine has changed, or a machine has come or gone.
func (j *Journal) Version() uint64 { return j.version.Load() }

// Machines lists all machines, in no order, without answers and lines, and with the newest boot of each only.
func (j *Journal) Machines() []MachineView {
	j.mu.RLock()
	defer j.mu.RUnlock()
	views := make([]MachineView, 0, len(j.ids))
	boots := make([]BootView, 0, len(j.ids))
	known := peers{}
	for _, m := range j.ids {
		v := j.view(m)
		boots = append(boots, m.newest().viewBy(false, known))
		v.Boots = boots[len(boots)-1 : len(boots) : len(boots)]
		views = append(views, v)
	}
	return views
}

// Machine is all that is known of one machine, by its ID or by any of its MACs or its address.
func (j *Journal) Machine(id string) (MachineView, bool) {
	j.mu.RLock()
	defer j.mu.RUnlock()
	m := j.lookup(id)
	if m == nil {
		return MachineView{}, false
	}
	v := j.view(m)
	v.Boots = make([]BootView, 0, len(m.boots))
	for _, b := range slices.Backward(m.boots) {
		v.Boots = append(v.Boots, b.view(true))
	}
	for i := range m.lines {
		v.Lines = append(v.Lines, m.lines[i].view())
	}
	return v, true
}

// Counts tells how many machines are in which state at which step.
func (j *Journal) Counts() []Count {
	type key struct {
		state State
		step  Step
	}
	sums := map[key]int{}
	j.mu.RLock()
	for _, m := range j.ids {
		if b := m.newest(); b != nil {
			sums[key{b.state, b.furthest}]++
		}
	}
	j.mu.RUnlock()
	counts := make([]Count, 0, len(sums))
	for k, n := range sums {
		counts = append(counts, Count{State: k.state, Step: k.step, Machines: n})
	}
	slices.SortFunc(counts, func(a, b Count) int {
		byOrder := cmp.Compare(a.Step.order(), b.Step.order())
		return cmp.Or(cmp.Compare(a.State, b.State), byOrder, cmp.Compare(a.Step, b.Step))
	})
	return counts
}
