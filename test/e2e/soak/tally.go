package soak

import (
	"slices"
	"strings"
	"sync"
	"time"
)

// Traffic counts the exchanges of one kind.
type Traffic struct {
	OK      int `json:"ok"`
	Excused int `json:"excused"` // failed while a backend was killed
	Failed  int `json:"failed"`
}

// span is a time in which what goes on may fail.
type span struct{ from, to time.Time }

// tally counts what goes well and what does not.
type tally struct {
	mu      sync.Mutex
	traffic map[string]*Traffic
	changes map[string]int
	spans   []span
	lines   map[string]time.Time // syslog lines under way, with their time
}

func newTally() *tally {
	return &tally{traffic: map[string]*Traffic{}, changes: map[string]int{}, lines: map[string]time.Time{}}
}

// excuse lets what goes on between two moments fail.
func (t *tally) excuse(from, to time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.spans = append(t.spans, span{from, to})
}

func (t *tally) changed(how string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.changes[how]++
}

// excused is whether a span overlaps with a time. The caller holds mu.
func (t *tally) excused(from, to time.Time) bool {
	return slices.ContainsFunc(t.spans, func(s span) bool { return from.Before(s.to) && s.from.Before(to) })
}

// count takes the result of an exchange, and tells whether it is a failure that nothing excuses.
func (t *tally) count(name string, begun time.Time, err error, excusable bool) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	one := t.of(name)
	switch {
	case err == nil:
		one.OK++
	case excusable && t.excused(begun, time.Now()):
		one.Excused++
	default:
		one.Failed++
		return true
	}
	return false
}

func (t *tally) of(name string) *Traffic {
	one := t.traffic[name]
	if one == nil {
		one = new(Traffic)
		t.traffic[name] = one
	}
	return one
}

// sent notes a syslog line on its way, by its last word.
func (t *tally) sent(word string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lines[word] = time.Now()
}

// line takes a syslog line that arrived.
func (t *tally) line(text string) {
	word := text[strings.LastIndexByte(text, ' ')+1:]
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, ok := t.lines[word]; ok {
		delete(t.lines, word)
		t.of("syslog").OK++
	}
}

// lost counts the lines that are overdue, and names one that nothing excuses.
func (t *tally) lost(before time.Time) (string, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	found := ""
	for word, at := range t.lines {
		switch {
		case at.After(before):
			continue
		case t.excused(at.Add(-time.Second), at.Add(time.Second)):
			t.of("syslog").Excused++
		default:
			t.of("syslog").Failed++
			found = word
		}
		delete(t.lines, word)
	}
	return found, found != ""
}
