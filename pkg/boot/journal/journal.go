package journal

import (
	"cmp"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tinkerbell/stack/pkg/boot"
)

// Journal keeps machines and their boots, within its limits. One goroutine records and ticks, any number reads.
type Journal struct {
	options Options

	mu        sync.RWMutex
	ids       map[string]*machine
	macs      map[[6]byte]*machine
	uuids     map[[16]byte]*machine
	addresses map[netip.Addr]binding
	byRank    [ranks]list
	history   list
	active    map[*machine]struct{} // machines whose newest boot goes on
	bytes     int                   // of all machines, estimated
	scene     scene
	forgotten atomic.Uint64 // machines that made room

	// What is to be told once the lock is free. The goroutine that records has these for itself.
	changed map[string]struct{}
	changes []Change

	watchers watchers
}

// New makes an empty journal.
func New(o Options) *Journal {
	o.Limits, o.Waits = o.Limits.withDefaults(), o.Waits.withDefaults()
	j := &Journal{
		options: o, ids: map[string]*machine{}, macs: map[[6]byte]*machine{}, uuids: map[[16]byte]*machine{},
		addresses: map[netip.Addr]binding{}, history: list{kind: history}, active: map[*machine]struct{}{},
		scene: newScene(), changed: map[string]struct{}{},
	}
	return j
}

// Record takes an event, in the order of arrival. The time is the event's.
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
			j.scene.loaded = max(j.scene.loaded, e.At)
			j.served(m, e)
		case boot.Syslog:
			j.syslog(m, e)
		}
		if len(m.boots) > 0 {
			j.settle(m, e.At)
			j.touched(m)
			j.changed[m.id] = struct{}{}
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
	for m := range j.active {
		if j.settle(m, now.UnixNano()) {
			j.changed[m.id] = struct{}{}
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
	cause := j.diagnose(m, b, now)
	quiet := now - b.end
	if cause != nil && cause.Name == NetbootNotAllowed && quiet >= int64(diskWait) && m.installed() {
		b.local = true // It asks the network first at each start, and boots its disk since nobody lets it.
		cause = nil
	}
	switch {
	case b.local || b.booted(now):
		b.state, cause = Booted, nil
	case quiet >= int64(j.options.Waits.Silent):
		if b.state, cause = Silent, old; old == nil {
			b.cause = nil
		}
	case cause != nil:
		b.state = Stuck
	default:
		b.state = Booting
	}
	b.setCause(cause, now)
	if st := b.last(b.at); st != nil && cause != nil && b.at.isDHCP() && st.result == Going {
		st.result = Failed
	}
	if name(old) != name(b.cause) {
		j.tell(CauseChanged, m, b, now)
	}
	if b.state != before {
		j.tellState(m, b, before, now)
	}
	j.tellSteps(m, b, now)
	switch b.state {
	case Booted, Silent:
		j.endBoot(m, b, now)
		delete(j.active, m)
	default:
		j.active[m] = struct{}{}
	}
	return b.state != before || b.cause != old
}

// diskWait is how long an installed machine that may not boot from the network asks before it takes its disk.
const diskWait = time.Minute

// agentWait is how long an agent asks for nothing when it has done its work.
const agentWait = time.Minute

// installed tells whether the boot before the newest one ended as it should.
func (m *machine) installed() bool {
	return len(m.boots) > 1 && m.boots[len(m.boots)-2].state == Booted
}

// booted tells whether a boot has ended in order.
func (b *record) booted(now int64) bool {
	switch {
	case b.finished == 0 || b.failed.step == Agent || b.streams > 0 || b.short >= shortStreams:
		return false
	case b.reported || b.short > 0: // It may come back for more, or be sent away again.
		return now-b.called >= int64(agentWait)
	default:
		return true
	}
}

// setCause sets a cause, which is the same one as long as its name is.
func (b *record) setCause(c *Cause, now int64) {
	switch {
	case c == nil:
		b.cause = nil
		return
	case c == b.cause:
		return
	case b.cause != nil && b.cause.Name == c.Name:
		if c.Text == b.cause.Text && c.Certain == b.cause.Certain {
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
func (j *Journal) endBoot(m *machine, b *record, at int64) {
	if b.ended {
		return
	}
	b.ended = true
	for i := range b.steps {
		if s := &b.steps[i]; s.result == Going {
			if s.result = Failed; b.state == Booted {
				s.result = OK
			}
		}
	}
	j.tellSteps(m, b, at)
	j.tell(BootEnded, m, b, at)
}

// tellSteps tells of the steps that have ended: those with a result behind which there are others, or whose machine
// does not get on.
func (j *Journal) tellSteps(m *machine, b *record, at int64) {
	for i := range b.steps {
		s := &b.steps[i]
		if s.result == Going || s.result == s.told || i == len(b.steps)-1 && b.state == Booting && s.result == OK {
			continue
		}
		s.told = s.result
		if j.options.Changed != nil {
			c := Change{What: StepEnded, At: moment(at), Machine: j.view(m), Boot: b.view(false), Step: s.view(nil)}
			c.Step.Answers = b.answersOf(i)
			j.changes = append(j.changes, c)
		}
	}
}

func (j *Journal) tell(what What, m *machine, b *record, at int64) {
	if j.options.Changed != nil {
		c := Change{What: what, At: moment(at), Machine: j.view(m), Boot: b.view(what == BootEnded)}
		j.changes = append(j.changes, c)
	}
}

func (j *Journal) tellState(m *machine, b *record, before State, at int64) {
	if j.options.Changed != nil {
		j.changes = append(j.changes, Change{
			What: StateChanged, At: moment(at), Machine: j.view(m), Boot: b.view(false), Before: before,
		})
	}
}

// deliver tells what has changed, without the lock.
func (j *Journal) deliver() {
	for i := range j.changes {
		j.options.Changed(j.changes[i])
	}
	clear(j.changes)
	j.changes = j.changes[:0]
	j.watchers.notify(j.changed)
	clear(j.changed)
}

// Machines lists all machines without answers and lines, and with the newest boot of each only: the stuck ones first,
// then those that boot, and among equals those first that were heard last.
func (j *Journal) Machines() []MachineView {
	j.mu.RLock()
	defer j.mu.RUnlock()
	machines := make([]*machine, 0, len(j.ids))
	for _, m := range j.ids {
		machines = append(machines, m)
	}
	slices.SortFunc(machines, compare)
	views := make([]MachineView, len(machines))
	boots := make([]BootView, len(machines))
	known := peers{}
	for i, m := range machines {
		views[i] = j.view(m)
		boots[i] = m.newest().viewBy(false, known)
		views[i].Boots = boots[i : i+1 : i+1]
	}
	return views
}

// compare orders machines: by state, then the one first that was heard last, then by ID.
func compare(a, b *machine) int {
	one, other := a.newest(), b.newest()
	return cmp.Or(cmp.Compare(one.state.urgency(), other.state.urgency()), cmp.Compare(other.end, one.end),
		cmp.Compare(a.id, b.id))
}

// urgency orders states.
func (s State) urgency() int {
	switch s {
	case Stuck:
		return 0
	case Booting:
		return 1
	case Booted:
		return 2
	default:
		return 3
	}
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
			sums[key{b.state, b.at}]++
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
