package journal

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/tinkerbell/stack/pkg/boot"
)

// newBoot begins a boot of a machine.
func (j *Journal) newBoot(m *machine, e *boot.Event) *bootRecord {
	at := e.At
	if e.Kind != boot.DHCPReply {
		at -= int64(max(0, e.Took))
	}
	old := m.newest()
	b := &bootRecord{begin: at, lastSign: at, moved: at, state: Booting, mac: e.MAC}
	if b.mac == ([6]byte{}) && len(m.macs) > 0 {
		b.mac = m.macs[0]
	}
	b.id = fmt.Sprintf("%s-%x", time.Unix(0, at).UTC().Format("20060102T150405.000000000"), b.mac)
	if len(m.macs) == 0 {
		b.id = fmt.Sprintf("%s-%s", time.Unix(0, at).UTC().Format("20060102T150405.000000000"), m.id)
	}
	if old != nil {
		j.supersede(m, old, b, at)
	}
	m.boots = append(m.boots, b)
	if len(m.boots) > j.options.Limits.Boots {
		m.boots = slices.Delete(m.boots, 0, 1)
	}
	j.active[m] = struct{}{}
	j.tell(Change{Kind: BootBegan}, m, b, at)
	j.tell(Change{Kind: StateChanged}, m, b, at)
	return b
}

// supersede ends a boot because another one begins, and carries over why boots of this machine fail.
func (j *Journal) supersede(m *machine, old, b *bootRecord, at int64) {
	if old.state == Booting {
		before := old.state
		old.state = Quiet
		if old.facts.agent.done() {
			old.state = Booted
		}
		j.tell(Change{Kind: StateChanged, Before: before}, m, old, at)
	}
	if n := len(m.boots); old.state == Stuck && old.rule != nil && n > 1 && m.boots[n-2].rule == old.rule {
		cause := *old.cause
		if !strings.HasPrefix(cause.Text, carried) {
			cause.Text = carried + cause.Text
		}
		cause.Certain = false
		b.rule, b.cause, b.heldStep = old.rule, &cause, old.heldStep
	}
	j.endBoot(m, old, at)
}

const carried = "The boots before this one ended so, and this one is not past that step yet: "

// done tells whether the agent got through its work as far as that can be seen: it had some, and hung up.
func (a *agent) done() bool { return a.finished != 0 && a.streams == 0 && (a.worked || a.reported) }

// step finds the step of the present attempt, or begins it, and returns its index.
func (b *bootRecord) step(s Step, at int64) int {
	i := len(b.steps) - 1
	for ; i >= b.attempt; i-- {
		if b.steps[i].step == s {
			break
		}
	}
	if i < b.attempt {
		if len(b.steps) >= maxSteps {
			// So many attempts: they are the last one's.
			i = len(b.steps) - 1
			b.attempt = min(b.attempt, i)
			for k := i; k >= 0; k-- {
				if b.steps[k].step == s {
					i = k
					break
				}
			}
		} else {
			b.steps = append(b.steps, step{step: s, result: Going, begin: at, end: at})
			i = len(b.steps) - 1
		}
	}
	if b.steps[i].end < at {
		b.steps[i].end = at
	}
	of := b.furthest.order()
	if s.order() > of && (s != Syslog || b.facts.kernel || of >= OSDHCP.order()) || b.furthest == "" {
		b.furthest = s
		b.moved = max(b.moved, at)
	}
	b.overcome(s, true)
	return i
}

// sign takes note of a sign of life.
func (b *bootRecord) sign(at int64) { b.lastSign = max(b.lastSign, at) }

// add appends an answer to a step, or counts it with the one before if that was the same.
func (j *Journal) add(b *bootRecord, i int, a answer) {
	a.step, a.count = uint16(i), 1
	for k := len(b.answers) - 1; k >= 0; k-- {
		last := &b.answers[k]
		if last.step != a.step {
			continue
		}
		if a.course == over && last.same(&a) {
			last.count++
			last.end = a.end
			last.bytes += a.bytes
			last.expected = a.expected
			return
		}
		break
	}
	b.answers = append(b.answers, a)
	if n := len(b.answers) + len(b.steps) - j.options.Limits.Answers; n > 0 {
		b.answers = slices.Delete(b.answers, 0, min(n, len(b.answers)))
	}
}

// same tells whether an answer that has ended is like another.
func (a *answer) same(b *answer) bool {
	return a.course == over && a.kind == b.kind && a.text == b.text && a.result == b.result && a.from == b.from
}

// underWay finds the answer that an event goes on with, or ends; nil if it is not kept.
func (b *bootRecord) underWay(i int, kind, text string) *answer {
	for k := range b.answers {
		if a := &b.answers[k]; a.course != over && a.step == uint16(i) && a.kind == kind && a.text == text {
			return a
		}
	}
	return nil
}

// earlier finds the step of an attempt before the present one that something belongs to; -1 if there is none.
func (b *bootRecord) earlier(s Step) int {
	for i := b.attempt - 1; i >= 0; i-- {
		if b.steps[i].step == s {
			return i
		}
	}
	return -1
}

// last is the last step of a kind in the present attempt; nil if there is none.
func (b *bootRecord) last(s Step) *step {
	for i := len(b.steps) - 1; i >= b.attempt; i-- {
		if b.steps[i].step == s {
			return &b.steps[i]
		}
	}
	return nil
}

// oldestOpen is the first of the present attempt's answers that go on; nil if none does.
func (b *bootRecord) oldestOpen() *answer {
	for k := range b.answers {
		if a := &b.answers[k]; a.course != over && int(a.step) >= b.attempt {
			return a
		}
	}
	return nil
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
