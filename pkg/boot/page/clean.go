package page

import (
	"github.com/tinkerbell/stack/pkg/boot"
	"github.com/tinkerbell/stack/pkg/boot/journal"
)

// How many bytes of a text are shown. The journal has bounds of its own; another replica's answer has none.
const (
	nameLength = 128
	textLength = 512
)

// Clean returns a text of a machine, cut to most bytes, as [boot.Clean] shows it. Nearly all texts are returned as they
// are.
func Clean(text string, most int) string {
	plain := len(text) <= most
	for i := 0; plain && i < len(text); i++ {
		plain = text[i] >= ' ' && text[i] < 0x7f
	}
	if plain {
		return text
	}
	return boot.Cut(boot.Clean([]byte(text[:min(len(text), most)])), most, "…")
}

// cleaned returns a machine that may be shown: every text is cleaned, in place.
func cleaned(m journal.MachineView) journal.MachineView {
	for _, text := range []*string{&m.ID, &m.MAC, &m.UUID, &m.Name, &m.Hardware, &m.Arch, &m.Pod} {
		*text = Clean(*text, nameLength)
	}
	m.VendorClass, m.UserClass = Clean(m.VendorClass, textLength), Clean(m.UserClass, textLength)
	for i := range m.OtherMACs {
		m.OtherMACs[i] = Clean(m.OtherMACs[i], nameLength)
	}
	for i := range m.Boots {
		cleanBoot(&m.Boots[i])
	}
	if m.Boots == nil {
		m.Boots = []journal.BootView{} // never null in JSON
	}
	for i := range m.Lines {
		l := &m.Lines[i]
		l.Facility, l.Severity = Clean(l.Facility, nameLength), Clean(l.Severity, nameLength)
		l.Tag, l.Text = Clean(l.Tag, nameLength), Clean(l.Text, textLength)
	}
	return m
}

func cleanBoot(b *journal.BootView) {
	b.ID = Clean(b.ID, nameLength)
	b.State, b.At = journal.State(Clean(string(b.State), nameLength)), cleanedStep(b.At)
	b.Next = cleanedStep(b.Next)
	if c := b.Cause; c != nil {
		c.Name, c.Text, c.Remedy = Clean(c.Name, nameLength), Clean(c.Text, textLength), Clean(c.Remedy, textLength)
		for i := range c.Others {
			o := &c.Others[i]
			o.Name, o.Text, o.Against = Clean(o.Name, nameLength), Clean(o.Text, textLength), Clean(o.Against, textLength)
		}
	}
	if b.Steps == nil {
		b.Steps = []journal.StepView{}
	}
	for i := range b.Steps {
		s := &b.Steps[i]
		s.Step, s.Result = cleanedStep(s.Step), journal.Result(Clean(string(s.Result), nameLength))
		s.From, s.Text = Clean(s.From, nameLength), Clean(s.Text, textLength)
		for j := range s.Answers {
			a := &s.Answers[j]
			a.Kind = Clean(a.Kind, nameLength)
			a.Text, a.Result = Clean(a.Text, textLength), Clean(a.Result, textLength)
		}
	}
}

func cleanedStep(s journal.Step) journal.Step { return journal.Step(Clean(string(s), nameLength)) }

// brief returns what lists show of a machine, in place: its newest boot, without answers and lines.
func brief(m journal.MachineView) journal.MachineView {
	m.Lines = nil
	if len(m.Boots) > 0 {
		m.Boots = m.Boots[:1]
		for i := range m.Boots[0].Steps {
			m.Boots[0].Steps[i].Answers = nil
		}
	}
	return cleaned(m)
}
