package page

import (
	"cmp"

	"github.com/tinkerbell/stack/pkg/boot/journal"
)

// bootPage is one boot of a machine.
type bootPage struct {
	journal.BootView
	Lanes []lane
	Waits bool // for its next step, which it has not asked for yet
}

// lane is a step of a boot.
type lane struct {
	journal.StepView
	Key  int
	Open bool
}

func bootPageOf(b journal.BootView, current bool) bootPage {
	p := bootPage{BootView: b}
	going := false
	for i, step := range b.Steps {
		open := step.Result == journal.Failed || stuckOrFailed(&b) && i == len(b.Steps)-1
		p.Lanes = append(p.Lanes, lane{StepView: step, Key: i, Open: open})
		going = going || step.Result == journal.Going
	}
	p.Waits = current && b.Next != "" && (stuckOrFailed(&b) || b.State == journal.Booting && !going)
	return p
}

// amount is how much an answer brought, of how much was announced.
func amount(a journal.Answer) string {
	if a.Expected == 0 || a.Expected == a.Bytes {
		return Bytes(a.Bytes)
	}
	return cmp.Or(Bytes(a.Bytes), "0") + " of " + Bytes(a.Expected)
}
