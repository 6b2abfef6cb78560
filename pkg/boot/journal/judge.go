package journal

import (
	"cmp"
	"slices"
	"time"

	"github.com/tinkerbell/stack/pkg/boot"
)

// isHandshake tells whether an event is of TLS that one of the two sides does not take.
func isHandshake(e *boot.Event) bool {
	reason := string(e.Text(boot.Reason))
	return e.Outcome == boot.Refused && (reason == boot.ReasonHandshake || reason == boot.ReasonTLSOnPlain)
}

// isOurTimer tells whether a timer of this service's ended something.
func isOurTimer(reason string) bool {
	switch reason {
	case boot.ReasonOurTimeout, boot.ReasonClientStalled, boot.ReasonTimeout, boot.ReasonIdle:
		return true
	}
	return false
}

// judge evaluates all rules. It returns the best supported cause of what holds the newest boot up, nil if none fits;
// the others that fit, each with what speaks against it.
func (j *Journal) judge(c *clues) (best *rule, others []suspect) {
	all := table()
	for i := range all {
		r := &all[i]
		if !r.when(c) {
			continue
		}
		const less = "less was heard that speaks for it"
		at := slices.IndexFunc(r.unless, func(o objection) bool { return o.is(c) })
		switch {
		case at >= 0:
			others = append(others, suspect{rule: r, against: r.unless[at].says, open: r.unless[at].leaves})
		case best == nil:
			best = r
		case r.support > best.support:
			others = append(others, suspect{rule: best, against: less})
			best = r
		default:
			others = append(others, suspect{rule: r, against: less})
		}
	}
	return best, others
}

// suspect is a cause that fits, and is not the one that is shown.
type suspect struct {
	*rule
	against string
	open    bool // it may be this one all the same
}

// causeOf is what holds a boot up, as it is shown.
func (j *Journal) causeOf(m *machine, b *bootRecord, now int64) (*rule, *Cause) {
	c := j.cluesOf(m, b, now)
	best, others := j.judge(c)
	likely := best
	var unsure string // why the likely cause cannot be told
	var mild bool     // whether it is the mild one of the two rules cannot-tell
	open := slices.IndexFunc(others, func(d suspect) bool { return d.open })
	switch {
	case best != nil: // a boot that may have gone on while a witness missed it is not shown as held up
		unsure, mild = j.scene.gap(best.needs, c.silentSince()), true
	case open >= 0:
		likely, unsure, mild = others[open].rule, others[open].against, others[open].support < supportMissing
		others = slices.Delete(others, open, open+1)
	default:
		return j.causeBefore(c, others)
	}
	var cause Cause
	if unsure != "" {
		best = ruleOf(CannotTell, mild)
		cause = Cause{Name: CannotTell, Text: "Cannot tell, because " + unsure + ". It may be " + likely.name + ": "}
		cause.Text += likely.text(c)
	} else {
		cause = Cause{Name: best.name, Text: best.text(c), Certain: best.certain(c)}
	}
	cause.Text += j.scene.crowd(b, cause.Name)
	cause.Remedy = cmp.Or(best.remedy, remedies()[best.name])
	for _, o := range others {
		if o.name != cause.Name && len(cause.Others) < maxOthers {
			cause.Others = append(cause.Others, Suspect{Name: o.name, Text: o.text(c), Against: o.against})
		}
	}
	return best, &cause
}

// causeBefore is the cause that was found before, where nothing shows that it is overcome: it stays until the step
// behind it is reached.
func (j *Journal) causeBefore(c *clues, others []suspect) (*rule, *Cause) {
	r := c.rule
	if r == nil || c.cause == nil || r.mild {
		return nil, nil
	}
	for _, o := range others {
		if o.rule == r {
			return nil, nil // Something speaks against it now.
		}
	}
	return r, c.cause
}

// What overcome is told of a step.
const stepEnded, stepBegun = false, true

// overcome drops the cause that a boot is held up by, if a step goes well, or is begun, that was behind it.
func (b *bootRecord) overcome(s Step, begun bool) {
	if b.rule == nil {
		return
	}
	by := b.rule.overcomeBy
	if by == "" {
		by = b.causeStep // where the machine was when the cause was found
	}
	if s.order() > by.order() || s.order() == by.order() && (!begun || b.rule.whenBegun) {
		b.rule, b.cause = nil, nil
	}
}

func ruleOf(name string, mild bool) *rule {
	all := table()
	return &all[slices.IndexFunc(all, func(r rule) bool { return r.name == name && r.mild == mild })]
}

// maxOthers is how many other causes are shown.
const maxOthers = 3

func (f *failure) tftp() bool { return f.kind == boot.TFTP }

func (f *failure) tls() bool {
	return f.outcome == boot.Refused && (f.reason == boot.ReasonHandshake || f.reason == boot.ReasonTLSOnPlain)
}

// stalled tells whether a transfer by TFTP stopped on its way, whatever error the server ended it with.
func (f *failure) stalled() bool {
	if !f.tftp() || f.outcome == boot.NoServer || f.outcome == boot.Refused {
		return false
	}
	return f.bytes > 0 || f.resent > 0 || f.took > 5*time.Second && f.outcome == boot.Done
}

func (f *failure) gateway() bool {
	return !f.tftp() && (f.status == 502 || f.status == 503 || f.status == 504)
}
