package page

import (
	"cmp"
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

// bootPage is one boot of a machine.
type bootPage struct {
	journal.BootView
	Lanes []lane
	Ticks []tick
	Wait  *bar // from the last sign to now
}

// lane is a step in the waterfall.
type lane struct {
	journal.StepView
	Key  int
	Span bar
	Bars []bar // its answers
	Open bool
}

// bar is a part of a lane, in units of the drawing.
type bar struct {
	X, Width     string
	Class, Title string
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
		every = each
		if length/each <= 6 {
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

// drawBoot draws a boot.
func drawBoot(b journal.BootView, now time.Time, current bool) bootPage {
	p := bootPage{BootView: b}
	scale := scaleOf(b, now, current)
	p.Ticks = scale.ticks()
	going := false
	for i, step := range b.Steps {
		last := step.End
		if current && step.Result == journal.Going && b.State == journal.Booting {
			last = scale.end
		}
		l := lane{
			StepView: step, Key: i, Span: scale.bar(step.Begin, last, "span "+string(step.Result)),
			Open: step.Result == journal.Failed || stuckOrFailed(&b) && i == len(b.Steps)-1,
		}
		for _, a := range step.Answers {
			mark := scale.bar(a.Begin, a.End, "answer ok")
			if !a.OK {
				mark.Class = "answer failed"
			}
			mark.Title = a.Kind + " " + a.Text + ": " + a.Result
			l.Bars = append(l.Bars, mark)
		}
		p.Lanes = append(p.Lanes, l)
		going = going || step.Result == journal.Going
	}
	if current && b.Next != "" && (stuckOrFailed(&b) || b.State == journal.Booting && !going) {
		w := scale.bar(b.End, scale.end, "wait")
		p.Wait = &w
	}
	return p
}

// amount is how much an answer brought, of how much was announced.
func amount(a journal.Answer) string {
	if a.Expected == 0 || a.Expected == a.Bytes {
		return Bytes(a.Bytes)
	}
	return cmp.Or(Bytes(a.Bytes), "0") + " of " + Bytes(a.Expected)
}
