package page

import (
	"html/template"
	"strconv"
	"strings"
	"time"

	"github.com/tinkerbell/stack/pkg/boot/journal"
)

// steps are those of a row's strip, in the order that a boot through iPXE takes them.
var steps = []journal.Step{
	journal.DHCP, journal.Loader, journal.IPXEDHCP, journal.Script, journal.Kernel, journal.Initramfs, journal.OSDHCP,
	journal.Syslog, journal.Metadata, journal.Agent, journal.Files,
}

// row is a machine in a list.
type row struct {
	*journal.MachineView
	Boot  *journal.BootView
	Text  string        // of its last step
	Strip template.HTML // of classes below, and nothing that a machine sent
	Label string        // of the strip, for those who don't see it
	Now   time.Time
	entry *entry
}

func rowOf(e *entry, now time.Time) row {
	b := Newest(&e.view)
	r := row{MachineView: &e.view, Boot: b, Now: now, entry: e}
	if n := len(b.Steps); n > 0 {
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
	var drawn strings.Builder
	var said []string
	for i, step := range steps {
		class := ""
		for _, s := range b.Steps {
			if s.Step == step {
				class = template.HTMLEscapeString(string(s.Result))
			}
		}
		if class != "" {
			said = append(said, stepLabels[step]+" "+class)
		}
		switch {
		case !stuckOrFailed(b):
		case step == b.At && (b.Next == "" || class == "failed"):
			class = "failed"
		case step == b.Next && class == "":
			class = "wanted"
		}
		drawn.WriteString(`<rect class="` + class + `" x="` + strconv.Itoa(i*pipWidth) +
			`" y="1" width="7" height="10" rx="1.5"/>`)
	}
	return template.HTML(drawn.String()), strings.Join(said, ", ")
}

// stuckOrFailed reports whether a boot is stuck, or failed.
func stuckOrFailed(b *journal.BootView) bool {
	return b.State == journal.Stuck || b.State == journal.StateFailed
}
