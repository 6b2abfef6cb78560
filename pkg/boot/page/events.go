package page

import (
	"net/http"
	"strings"
	"time"

	"github.com/tinkerbell/stack/pkg/boot/journal"
)

// The types of events.
const (
	EventHello   = "hello"   // first of all: who answers, and its time
	EventMachine = "machine" // a machine that is new, or of which something new is known
	EventGone    = "gone"    // a machine was forgotten, or no longer matches the filter
	EventReady   = "ready"   // all machines have been told once
	EventAlive   = "alive"   // nothing new
)

// Event is one of /api/v1/events.
type Event struct {
	Type    string               `json:"type"`
	Now     *time.Time           `json:"now,omitempty"`     // of hello and alive
	ID      string               `json:"id,omitempty"`      // of gone
	Machine *journal.MachineView `json:"machine,omitempty"` // of machine
}

func (s *Server) serveEvents(w http.ResponseWriter, r *http.Request, f Filter) {
	if f.Limit+f.Offset > 0 {
		refuse(w, http.StatusBadRequest, "offset and limit are of lists")
		return
	}
	st, done := s.open(w, strings.Contains(r.Header.Get("Accept"), mediaEvents))
	if st == nil {
		return
	}
	defer done()
	now := s.options.Now().UTC()
	st.event(Event{Type: EventHello, Now: &now})
	show := s.tellMachines(st, f)
	if id := r.URL.Query().Get("id"); id != "" {
		show = s.tellMachine(st, r, s.look.id(id))
	}
	s.watch(r.Context(), st, show)
}

// tellMachines tells what has changed since it was called last.
func (s *Server) tellMachines(st *stream, f Filter) func(*snapshot) {
	sent := make(map[string]*entry)
	first := true
	return func(snap *snapshot) {
		there := make(map[string]*entry, len(snap.entries))
		for _, e := range snap.entries {
			if !f.matches(e) {
				continue
			}
			there[e.view.ID] = e
			if sent[e.view.ID] != e {
				st.event(Event{Type: EventMachine, Machine: &e.view})
				st.flushIfFull()
			}
		}
		for id := range sent {
			if there[id] == nil {
				st.event(Event{Type: EventGone, ID: id})
			}
		}
		sent = there
		if first {
			first = false
			st.event(Event{Type: EventReady})
		}
	}
}

// ofMachine calls tell at first and whenever something new is known of a machine: that changes its entry.
func (s *Server) ofMachine(r *http.Request, id string, tell func(m journal.MachineView, found bool)) func(*snapshot) {
	var known *entry // an entry never changes: another one means that something of the machine did
	first := true
	return func(snap *snapshot) {
		if e := snap.ids[id]; first || e != known {
			known, first = e, false
			tell(s.machine(r, id))
		}
	}
}

// tellMachine tells all that is known of one machine when something of it has changed.
func (s *Server) tellMachine(st *stream, r *http.Request, id string) func(*snapshot) {
	told, first := false, true
	return s.ofMachine(r, id, func(m journal.MachineView, found bool) {
		switch {
		case found:
			st.event(Event{Type: EventMachine, Machine: &m})
		case told:
			st.event(Event{Type: EventGone, ID: id})
		}
		told = found
		if first {
			first = false
			st.event(Event{Type: EventReady})
		}
	})
}
