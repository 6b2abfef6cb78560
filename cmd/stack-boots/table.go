package main

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"maps"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/tinkerbell/stack/pkg/boot"
	"github.com/tinkerbell/stack/pkg/boot/feed"
	"github.com/tinkerbell/stack/pkg/boot/journal"
	"github.com/tinkerbell/stack/pkg/boot/page"
)

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

// text is what is shown.
func (c *command) text() string {
	var b bytes.Buffer
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	now := time.Now().Add(c.ahead)
	if c.id != "" {
		printMachine(t, &c.machine, now)
	} else {
		fmt.Fprintln(t, "STATE\tMACHINE\tNAME\tADDRESS\tAT\tHEARD\tCAUSE\tWAITS FOR, AND WHY")
		for i := range c.list.Machines {
			m := &c.list.Machines[i]
			fmt.Fprintln(t, listLine(m, page.Age(now.Sub(page.Newest(m).End))))
		}
		_ = t.Flush()
		printNotes(&b, c.list.Sources, now)
	}
	_ = t.Flush() // into memory
	return b.String()
}

// news are the lines that were not said before; what is said from then on is in said.
func (c *command) news(said map[string]bool) string {
	var lines []string
	if b := page.Newest(&c.machine); c.id != "" {
		for i := range b.Steps {
			lines = append(lines, stepLines(b, &b.Steps[i])...)
		}
		lines = append(lines, fmt.Sprintf("%s at %s%s", b.State, b.At, because(": ", b.Cause)))
	}
	for i := range c.list.Machines {
		lines = append(lines, listLine(&c.list.Machines[i], ""))
	}
	var fresh strings.Builder
	was := maps.Clone(said)
	clear(said)
	for _, line := range lines {
		if said[line] = true; !was[line] {
			fresh.WriteString(strings.Join(strings.Fields(line), " ") + "\n")
		}
	}
	return fresh.String()
}

// seen is what was seen of a cause.
func seen(c *journal.Cause) string {
	if c.Certain {
		return c.Text
	}
	return "likely: " + c.Text
}

// because is a cause with its remedy, behind a text; nothing where there is none.
func because(text string, c *journal.Cause) string {
	if c == nil {
		return ""
	}
	return text + seen(c) + " → " + c.Remedy
}

func address(m *journal.MachineView) string {
	if !m.Address.IsValid() {
		return ""
	}
	return m.Address.String()
}

// listLine is a machine in a list that was heard so long ago.
func listLine(m *journal.MachineView, heard string) string {
	b := page.Newest(m)
	cause, why := "", ""
	if b.State != journal.Booted {
		why = string(b.Next) + because(": ", b.Cause)
	}
	if b.Cause != nil {
		cause = b.Cause.Name
	}
	return strings.Join([]string{
		string(b.State), m.ID, cmp.Or(m.Name, "-"), cmp.Or(address(m), "-"), string(b.At), heard, cmp.Or(cause, "-"),
		strings.TrimPrefix(why, ": "),
	}, "\t")
}

// printNotes names the programs that are not heard, and those that lost events.
func printNotes(w io.Writer, sources []feed.Source, now time.Time) {
	for _, each := range sources {
		if !each.Heard {
			fmt.Fprintf(w, "Note: %s %s is not heard any more, since %s\n", each.Program, each.Pod,
				page.Age(now.Sub(each.Since)))
		}
		if each.Lost > 0 {
			fmt.Fprintf(w, "Note: %s %s has lost %d events, the last %s ago\n", each.Program, each.Pod, each.Lost,
				page.Age(now.Sub(each.LostAt)))
		}
	}
	if len(sources) == 0 {
		fmt.Fprintln(w, "Note: neither dhcp-relay nor stack-proxy is heard")
	}
}

func printMachine(t *tabwriter.Writer, m *journal.MachineView, now time.Time) {
	b := page.Newest(m)
	for _, fact := range [][2]string{
		{"Machine", m.ID}, {"Name", m.Name}, {"Hardware", m.Hardware}, {"Address", address(m)}, {"Arch", m.Arch},
		{"State", string(b.State)}, {"At", string(b.At)}, {"Next", string(b.Next)},
		{"Started", page.Age(now.Sub(b.Begin)) + " ago"}, {"Heard", page.Age(now.Sub(b.End)) + " ago"},
	} {
		if fact[1] != "" {
			fmt.Fprintf(t, "%s:\t%s\n", fact[0], fact[1])
		}
	}
	if c := b.Cause; c != nil {
		fmt.Fprintf(t, "Cause:\t%s (%s)\nRemedy:\t%s\n", seen(c), c.Name, c.Remedy)
	}
	fmt.Fprintln(t, "\nSTEP\tRESULT\tAT\tTOOK\tBYTES\tFROM\tWHAT")
	for i := range b.Steps {
		for _, line := range stepLines(b, &b.Steps[i]) {
			fmt.Fprintln(t, line)
		}
	}
	_ = t.Flush()
	for i, l := range m.Lines {
		if i == 0 {
			fmt.Fprintln(t)
		}
		fmt.Fprintf(t, "%s %s %s: %s\n", l.At.UTC().Format("2 Jan 15:04:05"), l.Severity, l.Tag, l.Text)
	}
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
