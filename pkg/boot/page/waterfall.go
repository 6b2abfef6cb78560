package page

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/tinkerbell/stack/pkg/boot/journal"
)

// The width of the waterfall in units of its drawing, and of a bar at least.
const (
	fullWidth = 1000
	minWidth  = 3
)

// maxWait is how much of a wait is drawn: a machine that has been stuck for hours leaves its steps legible.
const maxWait = 30 * time.Second

// longest is how much of a boot is drawn: no clock goes wrong by more.
const longest = 366 * 24 * time.Hour

// lane is a step in the waterfall.
type lane struct {
	Key          int
	Label, Class string
	Result       string
	Offset, Took string
	Bytes        string
	From, Text   string
	Span         bar
	Bars         []bar // its answers
	Answers      []answer
	More         int // answers that were kept together or not kept
	Open         bool
	Going        bool
	Begin        stamp
}

// bar is a part of a lane, in units of the drawing.
type bar struct {
	X, Width     string
	Class, Title string
}

// answer is one message, transfer or request.
type answer struct {
	Offset, Kind, Text, Result, Class, Bytes, From, Took string
	Count                                                int
	ISO                                                  string
}

// tick is a mark of the time axis.
type tick struct {
	X, Percent string // in units of the drawing, and in percent of its width
	Label      string
	Last       bool
}

// scale maps times to the width of the drawing.
type scale struct{ begin, end time.Time }

// scaleOf shows a boot from its begin to its last sign, and a part of what it waits since then.
func scaleOf(b journal.BootView, now time.Time, current bool) scale {
	end := b.End
	for _, s := range b.Steps {
		if s.End.After(end) {
			end = s.End
		}
	}
	if current && (b.State == journal.Stuck || b.State == journal.Booting) {
		wait := min(max(now.Sub(end), 0), max(maxWait, end.Sub(b.Begin)/4))
		end = end.Add(wait.Truncate(time.Second))
	}
	if least := b.Begin.Add(time.Second); end.Before(least) {
		end = least
	}
	if most := b.Begin.Add(longest); end.After(most) {
		end = most
	}
	return scale{b.Begin, end}
}

func (s scale) x(t time.Time) float64 {
	return min(max(float64(t.Sub(s.begin))/float64(s.end.Sub(s.begin))*fullWidth, 0), fullWidth)
}

func (s scale) bar(from, to time.Time, class string) bar {
	x, end := s.x(from), s.x(to)
	width := max(end-x, minWidth)
	x = min(x, fullWidth-width)
	return bar{X: units(x), Width: units(width), Class: class}
}

func units(x float64) string { return strconv.FormatFloat(x, 'f', 1, 64) }

// ticks are four to eight round times.
func (s scale) ticks() []tick {
	length := s.end.Sub(s.begin)
	every := time.Second
	for _, each := range []time.Duration{
		200 * time.Millisecond, 500 * time.Millisecond, time.Second, 2 * time.Second, 5 * time.Second, 10 * time.Second,
		15 * time.Second, 30 * time.Second, time.Minute, 2 * time.Minute, 5 * time.Minute, 10 * time.Minute,
		15 * time.Minute, 30 * time.Minute, time.Hour, 2 * time.Hour, 6 * time.Hour, 12 * time.Hour, 24 * time.Hour,
	} {
		if every = each; length/each <= 6 {
			break
		}
	}
	if length/every > 8 {
		every = length / 6
	}
	var all []tick
	for at := time.Duration(0); at <= length; at += every {
		x := s.x(s.begin.Add(at))
		all = append(all, tick{
			X: units(x), Percent: units(x*100/fullWidth) + "%", Label: axisLabel(at), Last: x > fullWidth*19/20,
		})
	}
	return all
}

func axisLabel(d time.Duration) string {
	switch {
	case d == 0:
		return "0"
	case d%time.Second != 0:
		return strconv.FormatFloat(d.Seconds(), 'f', 1, 64) + " s"
	case d < time.Minute:
		return fmt.Sprintf("%d s", d/time.Second)
	case d%time.Minute == 0 && d < time.Hour:
		return fmt.Sprintf("%d m", d/time.Minute)
	}
	return strings.TrimSuffix(strings.TrimSuffix(Duration(d), " 00 s"), " 00 m")
}

func laneOf(b journal.BootView, i int, s scale, now time.Time, current bool) lane {
	step := b.Steps[i]
	last := step.End
	if current && step.Result == journal.Going && b.State == journal.Booting {
		last = s.end
	}
	l := lane{
		Key: i, Label: StepLabel(step.Step), Class: resultClass(step.Result), Result: string(step.Result),
		Offset: "+" + Duration(step.Begin.Sub(b.Begin)), Took: Duration(step.End.Sub(step.Begin)), Bytes: Bytes(step.Bytes),
		From: step.From, Text: step.Text, Span: s.bar(step.Begin, last, "span "+resultClass(step.Result)),
		Going: step.Result == journal.Going, Begin: stampAt(step.Begin, now),
		Open: step.Result == journal.Failed ||
			(b.State == journal.Stuck || b.State == journal.Broken) && i == len(b.Steps)-1,
	}
	for _, a := range step.Answers {
		class := "ok"
		if !a.OK {
			class = "failed"
		}
		mark := s.bar(a.Begin, a.End, "answer "+class)
		mark.Title = a.Kind + " " + a.Text + ": " + a.Result
		l.Bars = append(l.Bars, mark)
		from := ""
		if a.From.IsValid() {
			if from = a.From.String(); a.From.Port() == 0 {
				from = a.From.Addr().String()
			}
		}
		amount := Bytes(a.Bytes)
		if a.Expected > 0 && a.Expected != a.Bytes {
			if amount == "" {
				amount = "0"
			}
			amount += " of " + Bytes(a.Expected)
		}
		took := ""
		if a.End.After(a.Begin) {
			took = Duration(a.End.Sub(a.Begin))
		}
		l.Answers = append(l.Answers, answer{
			Offset: "+" + Duration(a.Begin.Sub(b.Begin)), Kind: a.Kind, Text: a.Text, Result: a.Result, Class: class,
			Bytes: amount, From: from, Took: took, Count: a.Count, ISO: stampAt(a.Begin, now).ISO,
		})
	}
	return l
}
