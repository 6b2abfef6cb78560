package page

import (
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

	mu    sync.Mutex
	last  *snapshot
	asked time.Time // when somebody looked last
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
	l.last = s
	l.mu.Unlock()
	return s
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
