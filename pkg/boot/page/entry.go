package page

import (
	"cmp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tinkerbell/stack/pkg/boot/journal"
)

// entry is a machine of a snapshot. It never changes: a machine that does has a new one, so that two snapshots are
// compared by pointers, and what is made of a machine is made once for all that look.
type entry struct {
	view journal.MachineView // brief

	search sync.Once
	words  string
	digits []string
}

// Newest is a machine's newest boot; an empty one where it has none.
func Newest(m *journal.MachineView) *journal.BootView {
	if len(m.Boots) == 0 {
		return &journal.BootView{State: journal.Quiet}
	}
	return &m.Boots[0]
}

// text is all that a filter looks into, in small letters.
func (e *entry) text() string { e.index(); return e.words }

// macs are the digits of the machine's MACs.
func (e *entry) macs() []string { e.index(); return e.digits }

func (e *entry) index() {
	e.search.Do(func() {
		m, b := &e.view, Newest(&e.view)
		all := []string{
			m.ID, m.MAC, m.UUID, m.Name, m.Hardware, m.Arch, m.VendorClass, m.UserClass, m.Pod, string(b.State), string(b.At),
		}
		if m.Address.IsValid() {
			all = append(all, m.Address.String())
		}
		if b.Cause != nil {
			all = append(all, b.Cause.Name, b.Cause.Text)
		}
		for _, s := range b.Steps {
			all = append(all, s.Text, s.From)
		}
		e.words = strings.ToLower(strings.Join(append(all, m.OtherMACs...), "\n"))
		if m.MAC != "" {
			e.digits = append(e.digits, digits(m.MAC))
		}
		for _, mac := range m.OtherMACs {
			e.digits = append(e.digits, digits(mac))
		}
	})
}

// before is the order of lists.
func before(a, b *entry) int { return compare(&a.view, &b.view) }

// Before is the order of lists, for slices.SortFunc: what needs a person first, then the newest boot first.
func Before(a, b journal.MachineView) int { return compare(&a, &b) }

func compare(a, b *journal.MachineView) int {
	x, y := Newest(a), Newest(b)
	return cmp.Or(
		cmp.Compare(slices.Index(States, x.State), slices.Index(States, y.State)),
		y.Begin.Compare(x.Begin),
		strings.Compare(a.ID, b.ID),
	)
}

// same tells whether two brief views show the same.
func same(a, b *journal.MachineView) bool {
	return a.ID == b.ID && a.MAC == b.MAC && a.UUID == b.UUID && a.Address == b.Address && a.Name == b.Name &&
		a.Hardware == b.Hardware && a.Arch == b.Arch && a.VendorClass == b.VendorClass && a.UserClass == b.UserClass &&
		a.Pod == b.Pod && slices.Equal(a.OtherMACs, b.OtherMACs) && slices.EqualFunc(a.Boots, b.Boots, sameBoot)
}

func sameBoot(a, b journal.BootView) bool {
	return a.ID == b.ID && a.Begin.Equal(b.Begin) && a.End.Equal(b.End) && a.State == b.State && a.At == b.At &&
		a.Next == b.Next && sameCause(a.Cause, b.Cause) && slices.EqualFunc(a.Steps, b.Steps, sameStep)
}

func sameCause(a, b *journal.Cause) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.Name == b.Name && a.Text == b.Text && a.Remedy == b.Remedy && a.Certain == b.Certain &&
		a.Since.Equal(b.Since)
}

func sameStep(a, b journal.StepView) bool {
	return a.Step == b.Step && a.Result == b.Result && a.Begin.Equal(b.Begin) && a.End.Equal(b.End) &&
		a.Bytes == b.Bytes && a.From == b.From && a.Text == b.Text
}

// snapshot is all machines at a time. It never changes.
type snapshot struct {
	version uint64 // another one where anything is another
	taken   time.Time
	cost    time.Duration // of making it
	entries []*entry      // in the order of lists
	ids     map[string]*entry
}

// newSnapshot makes a snapshot of machines, and takes the entries of those that have not changed from an older one,
// which may be nil.
func newSnapshot(machines []journal.MachineView, older *snapshot) *snapshot {
	s := &snapshot{entries: make([]*entry, 0, len(machines)), ids: make(map[string]*entry, len(machines))}
	for i := range machines {
		m := &machines[i]
		if s.ids[m.ID] != nil {
			continue
		}
		var e *entry
		if older != nil {
			if was := older.ids[m.ID]; was != nil && same(&was.view, m) {
				e = was
			}
		}
		if e == nil {
			e = &entry{view: *m}
			// The journal's views share memory: one that stays would keep those of all machines, and each look's anew.
			e.view.Boots = slices.Clone(m.Boots)
		}
		s.entries, s.ids[m.ID] = append(s.entries, e), e
	}
	slices.SortFunc(s.entries, before)
	return s
}

// matching are the entries that a filter lets through.
func (s *snapshot) matching(f Filter) []*entry {
	found := make([]*entry, 0, len(s.entries))
	for _, e := range s.entries {
		if f.matches(e) {
			found = append(found, e)
		}
	}
	return found
}
