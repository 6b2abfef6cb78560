package journey

import (
	"context"
	"fmt"
	"time"

	"github.com/tinkerbell/stack/test/e2e/lab"
)

// mark says that a machine passed a step, or failed in it.
type mark struct {
	step   string // empty: the one under way
	ok     bool
	detail string
	at     time.Time
}

// traveller is a machine on its way.
type traveller struct {
	machine  lab.Machine
	firmware string // "bios", "uefi" or "go"
	start    time.Time
	stages   []stage
	steps    []Step // of the stages
	marks    chan mark
	passed   func(machine string, step Step)
	// hint says what the programs of a stage have been up to since it began.
	hint  func(s stage, since time.Time) string
	scale float64 // of the times allowed
}

func newTraveller(machine lab.Machine, firmware string, stages []stage) *traveller {
	t := &traveller{machine: machine, firmware: firmware, stages: stages, marks: make(chan mark, 256), scale: 1}
	for _, stage := range stages {
		t.steps = append(t.steps, Step{Name: stage.name, Detail: notReached})
	}
	return t
}

// put hands a mark over. It does not wait: more marks than the channel holds are of no interest.
func (t *traveller) put(m mark) {
	if m.at.IsZero() {
		m.at = time.Now()
	}
	select {
	case t.marks <- m:
	default:
	}
}

// travel waits for one step after the other until all are passed or one failed.
func (t *traveller) travel(ctx context.Context) MachineResult {
	current := 0
	since := t.start
	timer := time.NewTimer(0)
	defer timer.Stop()
	for current < len(t.stages) {
		timer.Reset(time.Until(since.Add(t.allowed(t.stages[current]))))
		var m mark
		select {
		case m = <-t.marks:
		case <-timer.C:
			m = mark{detail: t.late(t.stages[current], since), at: time.Now()}
		case <-ctx.Done():
			m = mark{detail: context.Cause(ctx).Error(), at: time.Now()}
		}
		at := current
		if m.step != "" {
			if at = indexOf(t.stages, m.step); at < 0 {
				continue
			}
		}
		if t.steps[at].OK {
			continue // the first time counts
		}
		t.steps[at].OK, t.steps[at].Detail = m.ok, oneLine(m.detail)
		t.steps[at].Seconds = max(0, m.at.Sub(t.start).Seconds())
		t.passed(t.machine.Name, t.steps[at])
		if !m.ok {
			return t.result(t.steps[at].Seconds)
		}
		for current < len(t.stages) && t.steps[current].OK {
			current++
			since = m.at
		}
	}
	return t.result(t.steps[len(t.stages)-1].Seconds)
}

func (t *traveller) allowed(s stage) time.Duration {
	if t.firmware == firmwareGo {
		return time.Duration(float64(s.client) * t.scale)
	}
	return time.Duration(float64(s.firmware) * t.scale)
}

// late says what did not come in time, and what may be the matter.
func (t *traveller) late(s stage, since time.Time) string {
	text := fmt.Sprintf("%s within %s", s.missing, t.allowed(s).Round(time.Millisecond))
	if hint := t.hint(s, since); hint != "" {
		text += "; " + hint
	}
	return text
}

func (t *traveller) result(seconds float64) MachineResult {
	result := MachineResult{Name: t.machine.Name, Firmware: t.firmware, OK: true, Seconds: seconds, Steps: t.steps}
	for _, step := range t.steps {
		result.OK = result.OK && step.OK
	}
	return result
}
