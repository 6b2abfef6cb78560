package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
	"unicode/utf8"

	"github.com/tinkerbell/stack/pkg/boot"
	"github.com/tinkerbell/stack/pkg/boot/feed"
	"github.com/tinkerbell/stack/pkg/boot/journal"
	"github.com/tinkerbell/stack/pkg/boot/page"
)

// clearScreen goes to the top left of a terminal and clears it.
const clearScreen = "\x1b[H\x1b[J"

// cleanWriter lets nothing through that a terminal would obey, whatever the server has sent: line by line, and lines
// are written whole.
type cleanWriter struct {
	w    io.Writer
	rest []byte
}

// Write implements io.Writer.
func (c *cleanWriter) Write(p []byte) (int, error) {
	for text := p; len(text) > 0; {
		line, after, whole := bytes.Cut(text, []byte("\n"))
		c.rest = append(c.rest, line...)
		if !whole {
			break
		}
		text = after
		if _, err := io.WriteString(c.w, boot.Clean(c.rest)+"\n"); err != nil {
			return 0, err
		}
		c.rest = c.rest[:0]
	}
	return len(p), nil
}

// clear clears a terminal.
func (c *command) clear() {
	if w, ok := c.stdout.(*cleanWriter); ok && c.width > 0 {
		_, _ = io.WriteString(w.w, clearScreen)
	}
}

// table begins a table; every line is cut at the terminal's width.
func (c *command) table() *tabwriter.Writer {
	return tabwriter.NewWriter(&cutWriter{c.stdout, c.width}, 0, 0, 2, ' ', 0)
}

// cutWriter cuts lines at a width; 0 leaves them.
type cutWriter struct {
	w     io.Writer
	width int
}

// Write implements io.Writer. A table is written as a whole, so lines are whole.
func (c *cutWriter) Write(p []byte) (int, error) {
	if c.width == 0 {
		return c.w.Write(p)
	}
	for line := range strings.Lines(string(p)) {
		if n := utf8.RuneCountInString(line); n > c.width {
			runes := []rune(strings.TrimSuffix(line, "\n"))
			line = string(runes[:c.width-1]) + "…\n"
		}
		if _, err := io.WriteString(c.w, line); err != nil {
			return 0, err
		}
	}
	return len(p), nil
}

const listHeader = "STATE\tMACHINE\tNAME\tADDRESS\tAT\tHEARD\tWAITS FOR, AND WHY"

func listLine(m *journal.MachineView, now time.Time) string {
	b := page.Newest(m)
	address := ""
	if m.Address.IsValid() {
		address = m.Address.String()
	}
	why := ""
	if b.State != journal.Booted {
		if b.Next != "" {
			why = string(b.Next)
		}
		if b.Cause != nil {
			why = strings.TrimPrefix(why+": ", ": ") + likely(b.Cause) + b.Cause.Text + " → " + b.Cause.Remedy
		}
	}
	return strings.Join([]string{
		string(b.State), m.ID, orDash(m.Name), orDash(address), string(b.At), page.Age(now.Sub(b.End)), why,
	}, "\t")
}

func (c *command) showList(machines []journal.MachineView, sources []feed.Source, now time.Time) error {
	if err := c.showMachines(machines, now); err != nil {
		return err
	}
	return c.showSources(sources, now)
}

func (c *command) showMachines(machines []journal.MachineView, now time.Time) error {
	t := c.table()
	fmt.Fprintln(t, listHeader)
	for i := range machines {
		fmt.Fprintln(t, listLine(&machines[i], now))
	}
	return t.Flush()
}

// showSources names the programs that are not heard, and those that lost events.
func (c *command) showSources(sources []feed.Source, now time.Time) error {
	said := []string{}
	for _, each := range sources {
		who := each.Program + " " + each.Pod
		if !each.Heard {
			said = append(said, who+" is not heard any more, since "+page.Age(now.Sub(each.Since)))
		}
		if each.Lost > 0 {
			ago := page.Age(now.Sub(each.LostAt))
			said = append(said, fmt.Sprintf("%s has lost %d events, the last %s ago", who, each.Lost, ago))
		}
	}
	if len(sources) == 0 {
		said = append(said, "neither dhcp-relay nor stack-proxy is heard")
	}
	for _, line := range said {
		if _, err := fmt.Fprintln(c.stdout, "Note: "+line); err != nil {
			return err
		}
	}
	return nil
}

func (c *command) showMachine(m journal.MachineView, now time.Time) error {
	b := page.Newest(&m)
	t := c.table()
	address := ""
	if m.Address.IsValid() {
		address = m.Address.String()
	}
	for _, fact := range [][2]string{
		{"Machine", m.ID}, {"Name", m.Name}, {"Hardware", m.Hardware}, {"Address", address}, {"Arch", m.Arch},
		{"State", string(b.State)}, {"At", string(b.At)}, {"Next", string(b.Next)},
		{"Started", page.Age(now.Sub(b.Begin)) + " ago"}, {"Heard", page.Age(now.Sub(b.End)) + " ago"},
	} {
		if fact[1] != "" {
			fmt.Fprintf(t, "%s:\t%s\n", fact[0], fact[1])
		}
	}
	if b.Cause != nil {
		fmt.Fprintf(t, "Cause:\t%s%s (%s)\nRemedy:\t%s\n", likely(b.Cause), b.Cause.Text, b.Cause.Name, b.Cause.Remedy)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(c.stdout)
	fmt.Fprintln(t, "STEP\tRESULT\tAT\tTOOK\tBYTES\tFROM\tWHAT")
	for i := range b.Steps {
		for _, line := range stepLines(b, &b.Steps[i]) {
			fmt.Fprintln(t, line)
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if len(m.Lines) > 0 {
		fmt.Fprintln(c.stdout)
	}
	for _, l := range m.Lines {
		fmt.Fprintf(c.stdout, "%s %s %s: %s\n", l.At.UTC().Format("15:04:05"), l.Severity, l.Tag, l.Text)
	}
	return nil
}

// stepLines are a step and its answers below it.
func stepLines(b *journal.BootView, s *journal.StepView) []string {
	at := func(t time.Time) string { return "+" + page.Duration(t.Sub(b.Begin)) }
	lines := []string{strings.Join([]string{
		string(s.Step), string(s.Result), at(s.Begin), page.Duration(s.End.Sub(s.Begin)), page.Bytes(s.Bytes), s.From,
		s.Text,
	}, "\t")}
	for _, a := range s.Answers {
		kind, from := a.Kind, ""
		if a.Count > 1 {
			kind += fmt.Sprintf(" ×%d", a.Count)
		}
		if a.From.IsValid() {
			from = a.From.String()
		}
		lines = append(lines, strings.Join([]string{
			"", "", at(a.Begin), page.Duration(a.End.Sub(a.Begin)), page.Bytes(a.Bytes), from,
			kind + " " + a.Text + ": " + a.Result,
		}, "\t"))
	}
	return lines
}

func likely(c *journal.Cause) string {
	if c.Certain {
		return ""
	}
	return "likely: "
}

func orDash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}

// watched is what a stream of events has told.
type watched struct {
	c        *command
	machines map[string]journal.MachineView
	ready    bool
	dirty    bool
	said     map[string]string // steps of the machine that is followed, as printed
	ahead    time.Duration     // of the server's clock
}

func newWatched(c *command) *watched {
	return &watched{c: c, machines: map[string]journal.MachineView{}, said: map[string]string{}}
}

func (w *watched) now() time.Time { return time.Now().Add(w.ahead) }

// take takes an event. Where the output is no terminal, each change is a line, or lines, of its own.
func (w *watched) take(line []byte) error {
	var e page.Event
	if err := json.Unmarshal(line, &e); err != nil {
		return fmt.Errorf("failed to read an event: %w", err)
	}
	if w.c.json {
		_, err := w.c.stdout.Write(append(line, '\n'))
		return err
	}
	switch e.Type {
	case page.EventHello:
		if e.Now != nil {
			w.ahead = time.Until(*e.Now)
		}
	case page.EventMachine:
		if e.Machine == nil {
			return nil
		}
		w.machines[e.Machine.ID], w.dirty = *e.Machine, true
		if w.ready && w.c.width == 0 {
			return w.line(e.Machine)
		}
	case page.EventGone:
		delete(w.machines, e.ID)
		w.dirty = true
	case page.EventReady:
		w.dirty = true
		if !w.ready && w.c.width == 0 {
			if err := w.show(); err != nil {
				return err
			}
		}
		w.ready = true
	case page.EventAlive:
		w.dirty = true // nothing is new, but how long ago machines were heard
	}
	return nil
}

// line prints what is new of a machine.
func (w *watched) line(m *journal.MachineView) error {
	if w.c.id == "" {
		_, err := fmt.Fprintln(w.c.stdout, strings.ReplaceAll(listLine(m, w.now()), "\t", "  "))
		return err
	}
	b := page.Newest(m)
	for _, each := range w.news(b) {
		if _, err := fmt.Fprintln(w.c.stdout, strings.Join(strings.Fields(each), " ")); err != nil {
			return err
		}
	}
	return nil
}

// news are the lines of a boot that were not printed yet, and its state.
func (w *watched) news(b *journal.BootView) []string {
	var fresh []string
	tell := func(key, text string) {
		if w.said[key] != text {
			w.said[key] = text
			fresh = append(fresh, text)
		}
	}
	for i := range b.Steps {
		for j, text := range stepLines(b, &b.Steps[i]) {
			tell(fmt.Sprint(b.ID, "/", i, "/", j), text)
		}
	}
	state := string(b.State) + " at " + string(b.At)
	if b.Cause != nil {
		state += ": " + likely(b.Cause) + b.Cause.Text + " → " + b.Cause.Remedy
	}
	tell("state", state)
	return fresh
}

// draw draws a terminal anew where something has changed.
func (w *watched) draw() error {
	if !w.dirty || !w.ready || w.c.width == 0 || w.c.json {
		return nil
	}
	w.dirty = false
	w.c.clear()
	return w.show()
}

func (w *watched) show() error {
	all := make([]journal.MachineView, 0, len(w.machines))
	for _, m := range w.machines {
		all = append(all, m)
	}
	if w.c.id != "" {
		if len(all) == 0 {
			_, err := fmt.Fprintln(w.c.stdout, "nothing was heard of this machine yet")
			return err
		}
		w.news(page.Newest(&all[0]))
		return w.c.showMachine(all[0], w.now())
	}
	slices.SortFunc(all, page.Before)
	return w.c.showMachines(all, w.now())
}
