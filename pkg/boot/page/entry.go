package page

import (
	"cmp"
	"reflect"
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
	words  string // all that a filter looks into, in small letters
	macs   string // the digits of its MACs
}

// Newest is a machine's newest boot; an empty one where it has none.
func Newest(m *journal.MachineView) *journal.BootView {
	if len(m.Boots) == 0 {
		return &journal.BootView{State: journal.Quiet}
	}
	return &m.Boots[0]
}

// index makes what filters look into.
func (e *entry) index() {
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
	e.macs = digits(strings.Join(append([]string{m.MAC}, m.OtherMACs...), "\n"))
}

// before is the order of lists: what needs a person first, then the newest boot first.
func before(a, b *entry) int {
	x, y := Newest(&a.view), Newest(&b.view)
	return cmp.Or(
		cmp.Compare(slices.Index(States, x.State), slices.Index(States, y.State)),
		y.Begin.Compare(x.Begin),
		strings.Compare(a.view.ID, b.view.ID),
	)
}

// snapshot is all machines at a time. It never changes.
type snapshot struct {
	version        uint64 // another one where anything is another
	journalVersion uint64 // the journal's version
	taken          time.Time
	cost           time.Duration // of making it
	entries        []*entry      // in the order of lists
	ids            map[string]*entry
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
			if was := older.ids[m.ID]; was != nil && reflect.DeepEqual(&was.view, m) {
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
