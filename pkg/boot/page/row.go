package page

import (
	"strings"
	"time"

	"github.com/tinkerbell/stack/pkg/boot/journal"
)

// usual is how many steps the strip of a row has: all but other.
const usual = 11

// row is a machine in a list. It is compared to know whether a browser has it already, so it holds no ages.
type row struct {
	ID, Title, MAC string
	Address, Arch  string
	State          journal.State
	At, Next       string // step's labels
	Text, Cause    string
	Likely         bool
	Strip          [usual]pip
	Label          string // of the strip, for those who don't see it
	began, heard   int64  // nanoseconds since 1970
	Took           string // of a boot that is over
	Pod            string // where there are several
	Known          bool   // the MAC is known
}

// pip is a step in a strip: "" has not been seen.
type pip struct {
	Class string
	X     int
}

// Began and Heard are told with their ages.
func (r shownRow) Began() stamp { return stampAt(time.Unix(0, r.began), r.now) }

// Heard is when the last sign of the machine was.
func (r shownRow) Heard() stamp { return stampAt(time.Unix(0, r.heard), r.now) }

// shownRow is a row at a time.
type shownRow struct {
	row
	now  time.Time
	Pods bool
}

const pipWidth = 9

func rowOf(e *entry) row {
	m, b := &e.view, newest(&e.view)
	r := row{
		ID: m.ID, Title: m.Name, MAC: m.MAC, Arch: m.Arch, State: b.State, At: StepLabel(b.At), Pod: m.Pod,
		began: b.Begin.UnixNano(), heard: b.End.UnixNano(), Known: m.MAC != "",
	}
	if r.Title == "" {
		r.Title, r.MAC = m.ID, ""
	}
	if m.Address.IsValid() && m.Address.String() != m.ID {
		r.Address = m.Address.String()
	}
	if b.State == journal.Booted {
		r.Took = Duration(b.End.Sub(b.Begin))
	} else if b.Next != "" {
		r.Next = StepLabel(b.Next)
	}
	if b.Cause != nil && b.State != journal.Booted {
		r.Text, r.Cause, r.Likely = b.Cause.Text, b.Cause.Name, !b.Cause.Certain
	} else if n := len(b.Steps); n > 0 {
		r.Text = strings.TrimSpace(b.Steps[n-1].Text + " " + Bytes(b.Steps[n-1].Bytes))
	}
	r.Strip, r.Label = strip(b)
	return r
}

// strip draws how far a boot got.
func strip(b *journal.BootView) (pips [usual]pip, label string) {
	var said []string
	for i := range usual {
		pips[i].X = i * pipWidth
		for _, s := range b.Steps {
			if s.Step == steps[i] {
				pips[i].Class = resultClass(s.Result)
			}
		}
		if pips[i].Class != "" {
			said = append(said, StepLabel(steps[i])+" "+pips[i].Class)
		}
		if b.State == journal.Stuck {
			switch {
			case steps[i] == b.At && (b.Next == "" || pips[i].Class == "failed"):
				pips[i].Class = "failed"
			case steps[i] == b.Next && pips[i].Class == "":
				pips[i].Class = "wanted"
			}
		}
	}
	return pips, strings.Join(said, ", ")
}

// resultClass is a class of the style sheet.
func resultClass(r journal.Result) string {
	switch r {
	case journal.OK, journal.Going, journal.Failed:
		return string(r)
	}
	return "other"
}
