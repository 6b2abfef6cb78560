package boots

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/tinkerbell/stack/test/e2e/lab"
)

// Case is a boot that somebody staged who had not written the rules: what really happens is known, and what may be said
// of it.
type Case struct {
	// Row is that of the review of boots that told of it; a good boot that it did not tell of has none.
	Row string
	// Variant tells apart what belongs to one row.
	Variant string
	// Name says what really happens.
	Name string
	// Staged says with what.
	Staged string
	// Machines is how many take part, of which all must be judged right; 0 means one. Unknown: the services do not know
	// them; UnknownToo: they know the first one only.
	Machines            int
	Unknown, UnknownToo bool
	// Firmware of the machines, and change what the services know of them.
	Firmware lab.Firmware
	change   func(*lab.Machine)

	Want Want

	in   *set
	play func(p []*player)
	// of names what is asked about in place of the machines' MACs.
	of func(p []*player) []string
	// stay is how long it is watched after the last move, once what is right was said. Default 10 s.
	stay time.Duration
	// patience is how long after the last move what is right may take. Default 30 s.
	patience time.Duration
	// check asks what no machine's boot tells. It returns what is said.
	check func(context.Context, *scene) (said string, err error)
}

// Want is what may be said of a case.
type Want struct {
	// Causes are those that are right; none: none may be said. Names is what the cause has to name.
	Causes []string
	Names  string
	// States are right in the end where no cause is; empty: booted.
	States []string
	// Early causes are true on the way there.
	Early []string
	// Not are states that are never true. Where there is a cause, booted is one of them.
	Not []string
	// Booted is true on the way there, as of a machine that is installed again and again.
	Booted bool
	// Untrue is what no sentence may say.
	Untrue string
	// NoNext: no next step is waited for.
	NoNext bool
	// Boots is how many boots there are to be; 0: not counted.
	Boots int
}

// machines makes those of a case by its place among all of its set.
func (c Case) machines(place int) (all []lab.Machine) {
	for i := range max(1, c.Machines) {
		m := lab.Machine{
			Name: c.ID(), MAC: net.HardwareAddr{0x52, 0x54, 0x00, 0x5e, 0x02 + byte(i), byte(place + 1)},
			IP: netip.AddrFrom4([4]byte{192, 0, 2, byte(101 + 40*i + place)}), Firmware: c.Firmware,
		}
		if i > 0 {
			m.Name = fmt.Sprintf("%s-%d", c.ID(), i+1)
		}
		if c.change != nil {
			c.change(&m)
		}
		all = append(all, m)
	}
	return all
}

// ID is a name for machines and files.
func (c Case) ID() string {
	if c.Row != "" {
		return "row" + c.Row + c.Variant
	}
	return "good-" + strings.ReplaceAll(strings.ToLower(c.Name), " ", "-")
}

// saw is what was said of a machine at a time.
type saw struct {
	after   time.Duration
	state   string
	at      string
	next    string
	cause   string
	text    string
	certain bool
	boots   int
}

func (s saw) said() string {
	if s.cause != "" {
		return s.cause
	}
	return strings.TrimSpace(s.state + " at " + s.at)
}

// The verdicts.
const (
	right      = "right"
	cannotTell = "cannot tell"
	wrong      = "false"
	wrongSure  = "false, certain"
)

// never says what of a sight is never true of a case.
func (w Want) never(s saw) (verdict, why string) {
	if !slices.Contains(append([]string{"", cannotTellCause}, append(w.Causes, w.Early...)...), s.cause) {
		verdict = wrong
		if s.certain {
			verdict = wrongSure
		}
		return verdict, fmt.Sprintf("after %.0f s it says %s: %s", s.after.Seconds(), s.cause, s.text)
	}
	if w.Untrue != "" && strings.Contains(s.text, w.Untrue) {
		return wrong, fmt.Sprintf("after %.0f s it says %q", s.after.Seconds(), s.text)
	}
	not := w.Not
	if len(w.Causes) > 0 && !w.Booted && !slices.Contains(w.States, "installed") {
		not = append([]string{"booted", "installed"}, not...)
	}
	if slices.Contains(not, s.state) {
		return wrong, fmt.Sprintf("after %.0f s it is %s", s.after.Seconds(), s.state)
	}
	if w.NoNext && s.next != "" {
		return wrong, fmt.Sprintf("after %.0f s it waits for %s", s.after.Seconds(), s.next)
	}
	if w.Boots > 0 && s.boots > w.Boots {
		return wrong, fmt.Sprintf("after %.0f s it has %d boots", s.after.Seconds(), s.boots)
	}
	return "", ""
}

// cannotTellCause says that a witness was missing.
const cannotTellCause = "cannot-tell"

// good reports whether a sight is what is to be said in the end.
func (w Want) good(s saw) bool {
	if s.cause != "" {
		return slices.Contains(w.Causes, s.cause) && strings.Contains(s.text, w.Names)
	}
	states := w.States
	if len(states) == 0 && len(w.Causes) == 0 {
		states = []string{"installed", "booted"}
	}
	return slices.Contains(states, s.state)
}

// judge judges all that was said of a machine.
func (w Want) judge(all []saw) (verdict, why string) {
	verdict = cannotTell
	for _, s := range all {
		if v, because := w.never(s); v == wrongSure || v != "" && verdict != wrong {
			verdict, why = v, because
			if v == wrongSure {
				return verdict, why
			}
		}
	}
	if verdict == wrong {
		return verdict, why
	}
	if len(all) == 0 || !w.good(all[len(all)-1]) {
		for _, s := range all {
			if w.good(s) {
				return cannotTell, fmt.Sprintf("it said so after %.0f s, and took it back", s.after.Seconds())
			}
		}
		return cannotTell, "it did not say so"
	}
	return right, ""
}

// expected is what is to be said, for people.
func (w Want) expected() string {
	if len(w.Causes) > 0 {
		return strings.Join(append(slices.Clone(w.Causes), w.States...), " or ")
	}
	if len(w.States) > 0 {
		return strings.Join(w.States, " or ")
	}
	return "installed"
}
