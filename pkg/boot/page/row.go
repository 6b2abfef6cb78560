package page

import (
	"html/template"
	"strconv"
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
	Strip          template.HTML // of classes below, and nothing that a machine sent
	Label          string        // of the strip, for those who don't see it
	began, heard   int64         // nanoseconds since 1970
	Took           string        // of a boot that is over
	Known          bool          // the MAC is known
}

// Began and Heard are told with their ages.
func (r shownRow) Began() stamp { return stampAt(time.Unix(0, r.began), r.now) }

// Heard is when the last sign of the machine was.
func (r shownRow) Heard() stamp { return stampAt(time.Unix(0, r.heard), r.now) }

// shownRow is a row at a time.
type shownRow struct {
	row
	now time.Time
}

func rowOf(e *entry) row {
	m, b := &e.view, Newest(&e.view)
	r := row{
		ID: m.ID, Title: m.Name, MAC: m.MAC, Arch: m.Arch, State: b.State, At: StepLabel(b.At),
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
	if b.Cause != nil {
		r.Text, r.Cause, r.Likely = b.Cause.Text, b.Cause.Name, !b.Cause.Certain
	} else if n := len(b.Steps); n > 0 {
		r.Text = strings.TrimSpace(b.Steps[n-1].Text + " " + Bytes(b.Steps[n-1].Bytes))
	}
	r.Strip, r.Label = strip(b)
	return r
}

// pipWidth is the width of a step in a strip, with the space behind it.
const pipWidth = 9

// strip draws how far a boot got: a bar for each usual step, whose class is of the style sheet. It is drawn here
// because a template takes ten times as long for it.
func strip(b *journal.BootView) (bars template.HTML, label string) {
	var drawn, said strings.Builder
	for i, step := range steps[:usual] {
		class := ""
		for _, s := range b.Steps {
			if s.Step == step {
				class = resultClass(s.Result)
			}
		}
		if class != "" {
			if said.Len() > 0 {
				said.WriteString(", ")
			}
			said.WriteString(stepLabels[step] + " " + class)
		}
		if b.State == journal.Stuck || b.State == journal.Broken {
			switch {
			case step == b.At && (b.Next == "" || class == "failed"):
				class = "failed"
			case step == b.Next && class == "":
				class = "wanted"
			}
		}
		drawn.WriteString(`<rect class="` + class + `" x="` + strconv.Itoa(i*pipWidth) +
			`" y="1" width="7" height="10" rx="1.5"/>`)
	}
	return template.HTML(drawn.String()), said.String()
}

// resultClass is a class of the style sheet.
func resultClass(r journal.Result) string {
	switch r {
	case journal.OK, journal.Going, journal.Failed:
		return string(r)
	}
	return "other"
}
