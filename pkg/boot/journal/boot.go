package journal

import (
	"encoding/hex"
	"net/netip"
	"slices"
	"strings"

	"github.com/tinkerbell/stack/pkg/boot"
)

// newBoot begins a boot of a machine.
func (j *Journal) newBoot(m *machine, e *boot.Event) *bootRecord {
	at := e.At
	if e.Kind != boot.DHCPReply {
		at -= int64(max(0, e.Took))
	}
	old := m.newest()
	b := &bootRecord{begin: at, lastHeard: at, moved: at, state: Booting, mac: e.MAC}
	if b.mac == ([6]byte{}) && len(m.macs) > 0 {
		b.mac = m.macs[0]
	}
	b.id = moment(at).Format("20060102T150405.000000000-") + m.id
	if len(m.macs) > 0 {
		b.id = moment(at).Format("20060102T150405.000000000-") + hex.EncodeToString(b.mac[:])
	}
	if old != nil {
		j.supersede(m, old, b, at)
	}
	m.boots = append(m.boots, b)
	if len(m.boots) > j.options.Limits.Boots {
		m.boots = slices.Delete(m.boots, 0, 1)
	}
	j.active[m] = struct{}{}
	j.tell(Change{Kind: StateChanged}, m, b, at)
	return b
}

// supersede ends a boot because another one begins, and carries over why boots of this machine fail.
func (j *Journal) supersede(m *machine, old, b *bootRecord, at int64) {
	if old.state == Booting {
		old.state = Quiet
		_, w := j.workflowOf(m)
		switch proven, done := j.finished(m, old, at); {
		case proven:
			old.state = Booted
		case done || w == nil && old.facts.agent.done():
			old.state = Installed
		}
		j.tell(Change{Kind: StateChanged, Before: Booting}, m, old, at)
	}
	if n := len(m.boots); old.state == Stuck && old.rule != nil && n > 1 && m.boots[n-2].rule == old.rule {
		cause := *old.cause
		if !strings.HasPrefix(cause.Text, carried) {
			cause.Text = carried + cause.Text
		}
		cause.Certain = false
		b.rule, b.cause, b.causeStep = old.rule, &cause, old.causeStep
	}
	j.endBoot(m, old, at)
}

const carried = "The boots before this one ended so, and this one is not past that step yet: "

// done tells whether the agent got through its work as far as that can be seen: it had some, and hung up.
func (a *agent) done() bool { return a.finished != 0 && a.streams == 0 && (a.worked || a.reported) }

// enter finds the step of the present attempt, or begins it, and returns its index. A step that begins may overcome a
// cause.
func (b *bootRecord) enter(s Step, at int64) int {
	i := b.index(s, b.attempt, len(b.steps))
	if last := len(b.steps) - 1; i < 0 && last+1 >= maxSteps { // So many attempts: they are the last one's.
		b.attempt = min(b.attempt, last)
		if i = b.index(s, 0, last); i < 0 {
			i = last
		}
	} else if i < 0 {
		b.steps = append(b.steps, step{step: s, result: Going, begin: at, end: at})
		i = last + 1
	}
	b.steps[i].end = max(b.steps[i].end, at)
	reached := b.furthest.order()
	if s.order() > reached && (s != Syslog || b.facts.kernel || reached >= OSDHCP.order()) || b.furthest == "" {
		b.furthest = s
		b.moved = max(b.moved, at)
	}
	b.overcome(s, stepBegun)
	return i
}

// index finds the last of some steps that is one of a kind; -1 if there is none.
func (b *bootRecord) index(s Step, from, to int) int {
	for i := to - 1; i >= from; i-- {
		if b.steps[i].step == s {
			return i
		}
	}
	return -1
}

// heardAt takes note of a sign of life.
func (b *bootRecord) heardAt(at int64) { b.lastHeard = max(b.lastHeard, at) }

// add appends a message to a step, or counts it with the one before if that was the same.
func (j *Journal) add(b *bootRecord, i int, m message) {
	m.step, m.count = uint16(i), 1
	for k := len(b.messages) - 1; k >= 0; k-- {
		last := &b.messages[k]
		if last.step != m.step {
			continue
		}
		if m.course == over && last.same(&m) {
			last.count++
			last.end = m.end
			last.bytes += m.bytes
			last.expected = m.expected
			return
		}
		break
	}
	b.messages = append(b.messages, m)
	if n := len(b.messages) + len(b.steps) - j.options.Limits.Messages; n > 0 {
		b.messages = slices.Delete(b.messages, 0, min(n, len(b.messages)))
	}
}

// same tells whether a message that has ended is like another.
func (m *message) same(b *message) bool {
	return m.course == over && m.kind == b.kind && m.text == b.text && m.result == b.result && m.from == b.from
}

// first is the oldest message that is so; nil if there is none.
func (b *bootRecord) first(is func(*message) bool) *message {
	for k := range b.messages {
		if m := &b.messages[k]; is(m) {
			return m
		}
	}
	return nil
}

// underWay finds the message that an event goes on with, or ends; nil if it is not kept.
func (b *bootRecord) underWay(i int, kind, text string) *message {
	return b.first(func(m *message) bool {
		return m.course != over && m.step == uint16(i) && m.kind == kind && m.text == text
	})
}

// last is the last step of a kind in the present attempt; nil if there is none.
func (b *bootRecord) last(s Step) *step {
	if i := b.index(s, b.attempt, len(b.steps)); i >= 0 {
		return &b.steps[i]
	}
	return nil
}

// oldestOpen is the first of the present attempt's messages that go on; nil if none does.
func (b *bootRecord) oldestOpen() *message {
	return b.first(func(a *message) bool { return a.course != over && int(a.step) >= b.attempt })
}

// again begins another attempt of a boot whose loader brought the firmware back.
func (b *bootRecord) again(at int64) {
	b.facts.again(b.last(Loader), at)
	b.attempt, b.attemptAt = len(b.steps), at
	b.furthest = ""
}

func addrPort(e *boot.Event) netip.AddrPort {
	a := boot.Addr(e.Endpoint)
	if !a.IsValid() {
		if a = boot.Addr(e.Server); !a.IsValid() {
			return netip.AddrPort{}
		}
	}
	return netip.AddrPortFrom(a, e.Port)
}
