package page

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/tinkerbell/stack/pkg/boot/journal"
)

const (
	// gather is how long changes are gathered before they are shown.
	gather = 250 * time.Millisecond
	// restFactor is how many times as long as making a snapshot took the next one is put off, at most by maxRest.
	restFactor = 5
	maxRest    = 300 * time.Millisecond
	// linger is how long a snapshot is kept after somebody looked last.
	linger = 30 * time.Second
)

// look has what all readers are shown: one snapshot of the machines, and single machines.
type look struct {
	journal Journal

	making sync.Mutex // one snapshot at a time

	mu      sync.Mutex
	last    *snapshot
	version uint64    // of the last, or of the one before it was dropped
	asked   time.Time // when somebody looked last
}

// snapshot returns all machines as they were at most maxRest ago.
func (l *look) snapshot() *snapshot {
	l.keep()
	l.making.Lock()
	defer l.making.Unlock()
	l.mu.Lock()
	older := l.last
	l.mu.Unlock()
	begin := time.Now()
	if older != nil && begin.Sub(older.taken) < max(gather/2, min(restFactor*older.cost, maxRest)) {
		return older
	}
	machines := l.journal.Machines()
	for i := range machines {
		machines[i] = brief(machines[i])
	}
	s := newSnapshot(machines, older)
	s.taken, s.cost = begin, time.Since(begin)
	l.mu.Lock()
	if older == nil || !slices.Equal(s.entries, older.entries) {
		l.version++
	}
	s.version = l.version
	l.last = s
	l.mu.Unlock()
	return s
}

// id is the ID of the machine that is meant by a text: a MAC in any spelling, an address, or the name of one machine.
func (l *look) id(text string) string {
	id := machineID(text)
	now := l.snapshot()
	if now.ids[id] != nil {
		return id
	}
	named := ""
	for _, e := range now.entries {
		if e.view.Name != text && e.view.Hardware != text && (!e.view.Address.IsValid() || e.view.Address.String() != id) {
			continue
		}
		if named != "" {
			return id
		}
		named = e.view.ID
	}
	return cmp.Or(named, id)
}

// machine is all that is known of a machine.
func (l *look) machine(id string) (journal.MachineView, bool) {
	m, found := l.journal.Machine(id)
	return cleaned(m), found
}

// keep keeps the snapshot for linger more: somebody looks.
func (l *look) keep() {
	l.mu.Lock()
	l.asked = time.Now()
	l.mu.Unlock()
}

// forget drops the snapshot, which is as large as the journal, if nobody has looked at it for long.
func (l *look) forget(now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now.Sub(l.asked) > linger {
		l.last = nil
	}
}
