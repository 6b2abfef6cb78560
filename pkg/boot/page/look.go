package page

import (
	"slices"
	"sync"
	"time"
)

const (
	// gather is how long changes are gathered before they are shown.
	gather = 250 * time.Millisecond
	// The next snapshot waits restFactor times as long as the last one took to make, maxRest at most.
	restFactor = 5
	maxRest    = 300 * time.Millisecond
	// linger is how long a snapshot is kept after somebody looked last.
	linger = 30 * time.Second
)

// look has what all readers are shown: one snapshot of the machines, and single machines.
type look struct {
	journal Journal

	making sync.Mutex // one snapshot at a time

	mu       sync.Mutex
	last     *snapshot
	version  uint64    // of the last, or of the one before it was dropped
	lookedAt time.Time // when somebody looked last
}

// snapshot returns all machines as they were at most maxRest ago.
func (l *look) snapshot() *snapshot {
	l.noteReader()
	l.making.Lock()
	defer l.making.Unlock()
	l.mu.Lock()
	older := l.last
	l.mu.Unlock()
	begin := time.Now()
	if older != nil && begin.Sub(older.taken) < max(gather/2, min(restFactor*older.cost, maxRest)) {
		return older
	}
	journalVersion := l.journal.Version() // before the machines: a change meanwhile is one that the snapshot may not have
	s := newSnapshot(l.journal.Machines(), older)
	s.taken, s.cost, s.journalVersion = begin, time.Since(begin), journalVersion
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
	if m, found := l.journal.Machine(id); found {
		return m.ID
	}
	var named []string
	for _, e := range l.snapshot().entries {
		if e.view.Name == text || e.view.Hardware == text {
			named = append(named, e.view.ID)
		}
	}
	if len(named) == 1 {
		return named[0]
	}
	return id
}

// noteReader keeps the snapshot for linger more: somebody looks.
func (l *look) noteReader() {
	l.mu.Lock()
	l.lookedAt = time.Now()
	l.mu.Unlock()
}

// forget drops the snapshot, which is as large as the journal, if nobody has looked at it for long.
func (l *look) forget(now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now.Sub(l.lookedAt) > linger {
		l.last = nil
	}
}
