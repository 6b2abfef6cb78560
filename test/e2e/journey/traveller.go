package journey

import (
	"context"
	"errors"
	"time"

	"github.com/tinkerbell/stack/test/e2e/lab"
	"github.com/tinkerbell/stack/test/e2e/progress"
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
	scale float64   // of the times allowed
	since time.Time // when the last step was passed
	// signs are those that something moves in a stage, and waited is how long the emulator has waited for a processor.
	signs  func(stage) []func() string
	waited func() time.Duration
	// workflow is the state of its workflow, which [Journey.followWorkflow] keeps.
	workflow string
}

func newTraveller(machine lab.Machine, firmware string, stages []stage) *traveller {
	t := &traveller{machine: machine, firmware: firmware, stages: stages, marks: make(chan mark, 256), scale: 1}
	t.signs = func(stage) []func() string { return nil }
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
	t.since = t.start
	for current := range t.stages {
		if failed := t.pass(ctx, current); failed != nil {
			return t.result(failed.Seconds)
		}
	}
	return t.result(t.steps[len(t.stages)-1].Seconds)
}

// pass waits until a step is passed, or any failed.
func (t *traveller) pass(ctx context.Context, current int) (failed *Step) {
	if t.steps[current].OK {
		return nil
	}
	step, watch := progress.Begin(ctx, t.patience(t.stages[current]))
	defer watch.End()
	for !t.steps[current].OK {
		var m mark
		select {
		case m = <-t.marks:
		case <-step.Done():
			m = mark{detail: t.gaveUp(t.stages[current], context.Cause(step)), at: time.Now()}
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
		t.since = m.at
		t.passed(t.machine.Name, t.steps[at])
		if !m.ok {
			return &t.steps[at]
		}
	}
	return nil
}

// patience is how long nothing may move in a stage.
func (t *traveller) patience(s stage) progress.Patience {
	patience := progress.Patience{Signs: t.signs(s), Waited: t.waited}
	quiet := s.firmware
	if t.firmware == firmwareGo {
		quiet = s.client
	}
	patience.Quiet = time.Duration(float64(quiet) * t.scale)
	return patience
}

// gaveUp says why a stage was not passed: what did not move, and what may be the matter.
func (t *traveller) gaveUp(s stage, cause error) string {
	if !errors.As(cause, new(*progress.Stalled)) {
		return cause.Error()
	}
	text := s.missing + ": " + cause.Error()
	if hint := t.hint(s, t.since); hint != "" {
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
