package page

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/tinkerbell/stack/pkg/boot/journal"
)

// The types of events.
const (
	EventHello   = "hello"   // first of all: who answers, and its time
	EventMachine = "machine" // a machine that is new, or of which something new is known
	EventGone    = "gone"    // a machine was forgotten, or no longer matches the filter
	EventReady   = "ready"   // all machines have been told once; again when other replicas are missing from then on
	EventAlive   = "alive"   // nothing new
)

// Event is one of /api/v1/events.
type Event struct {
	Type       string               `json:"type"`
	Now        *time.Time           `json:"now,omitempty"`        // of hello and alive
	Pod        string               `json:"pod,omitempty"`        // of hello
	ID         string               `json:"id,omitempty"`         // of gone
	Machine    *journal.MachineView `json:"machine,omitempty"`    // of machine
	Unanswered []Unanswered         `json:"unanswered,omitempty"` // of ready
}

const (
	mediaEvents = "text/event-stream"
	mediaLines  = "application/x-ndjson"
	// writeTimeout is how long a reader may take for what it is sent.
	writeTimeout = 10 * time.Second
	// maxStreams is how many streams may be open at once; the admin port's connections are bounded as well.
	maxStreams = 48
)

// stream writes events to one reader.
type stream struct {
	w          http.ResponseWriter
	controller *http.ResponseController
	sse        bool
	b          bytes.Buffer
}

// open begins a stream. It is nil where that has been refused; else its end is to be told by calling done.
func (s *Server) open(w http.ResponseWriter, sse bool) (st *stream, done func()) {
	if s.streams.Add(1) > maxStreams || s.ended() {
		s.streams.Add(-1)
		w.Header().Set("Retry-After", "5")
		refuse(w, http.StatusServiceUnavailable, "too many look already, or the program ends")
		return nil, nil
	}
	media := mediaLines
	if sse {
		media = mediaEvents
	}
	w.Header().Set("Content-Type", media)
	w.Header().Set("X-Accel-Buffering", "no") // nginx in front would keep events back
	return &stream{w: w, controller: http.NewResponseController(w), sse: sse}, func() { s.streams.Add(-1) }
}

// add adds an event whose encoding is JSON on one line.
func (st *stream) add(kind string, encoded []byte) {
	if st.sse {
		st.b.WriteString("event: " + kind + "\ndata: ")
	}
	st.b.Write(encoded)
	st.b.WriteByte('\n')
	if st.sse {
		st.b.WriteByte('\n')
	}
}

func (st *stream) event(e Event) {
	encoded, _ := json.Marshal(e) // there is nothing in it that cannot be encoded
	st.add(e.Type, encoded)
}

// flush sends what was added, and tells whether there was anything.
func (st *stream) flush() (sent bool, err error) {
	if st.b.Len() == 0 {
		return false, nil
	}
	_ = st.controller.SetWriteDeadline(time.Now().Add(writeTimeout)) // of a test's recorder it is not known
	if _, err := st.w.Write(st.b.Bytes()); err != nil {
		return false, err
	}
	st.b.Reset()
	if err := st.controller.Flush(); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return false, err
	}
	return true, nil
}

func (s *Server) serveEvents(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	f, err := parseFilter(query)
	if err != nil {
		refuse(w, http.StatusBadRequest, err.Error())
		return
	}
	st, done := s.open(w, strings.Contains(r.Header.Get("Accept"), mediaEvents))
	if st == nil {
		return
	}
	defer done()
	now := s.options.Now().UTC()
	st.event(Event{Type: EventHello, Now: &now, Pod: s.options.Pod})
	show := s.tellMachines(st, f)
	if id := query.Get("id"); id != "" {
		show = s.tellMachine(st, machineID(id), f.Own)
	}
	s.watch(r.Context(), st, f.Own, show)
}

// tellMachines tells what has changed since it was called last.
func (s *Server) tellMachines(st *stream, f Filter) func(context.Context, *snapshot) {
	sent := make(map[string]*entry)
	var unanswered []Unanswered
	first := true
	return func(_ context.Context, now *snapshot) {
		there := make(map[string]*entry, len(now.entries))
		for _, e := range now.entries {
			if !f.matches(e) {
				continue
			}
			there[e.view.ID] = e
			if sent[e.view.ID] != e {
				st.add(EventMachine, fmt.Appendf(nil, `{"type":%q,"machine":%s}`, EventMachine, e.json()))
			}
		}
		for id := range sent {
			if there[id] == nil {
				st.event(Event{Type: EventGone, ID: id})
			}
		}
		sent = there
		if first || !slices.Equal(unanswered, now.unanswered) {
			first, unanswered = false, now.unanswered
			st.event(Event{Type: EventReady, Unanswered: unanswered})
		}
	}
}

// tellMachine tells all that is known of one machine when something of it has changed.
func (s *Server) tellMachine(st *stream, id string, own bool) func(context.Context, *snapshot) {
	var sent []byte
	var known *entry
	first := true
	return func(ctx context.Context, now *snapshot) {
		e := now.ids[id]
		if e != nil && e == known { // whatever is new of a machine changes its entry
			return
		}
		known = e
		m, unanswered, found := s.fleet.machine(ctx, id, own)
		switch encoded, _ := json.Marshal(m); {
		case !found && sent != nil:
			sent = nil
			st.event(Event{Type: EventGone, ID: id})
		case found && !bytes.Equal(encoded, sent):
			sent = encoded
			st.event(Event{Type: EventMachine, Machine: &m})
		}
		if first {
			first = false
			st.event(Event{Type: EventReady, Unanswered: unanswered})
		}
	}
}

// watch calls show at once and after changes, gathered for a time, and sends what it adds to the stream, until the
// reader or the server has gone.
func (s *Server) watch(ctx context.Context, st *stream, own bool, show func(context.Context, *snapshot)) {
	changes, stop := s.options.Journal.Watch()
	defer stop()
	ticker := time.NewTicker(gather)
	defer ticker.Stop()
	var news <-chan struct{}
	if !own {
		news = s.fleet.changed()
	}
	changed, dirty, last := time.Now(), true, time.Now()
	for {
		if dirty {
			now := s.fleet.snapshot(ctx, own)
			dirty = now.taken.Before(changed)
			show(ctx, now)
		} else if s.fleet.look(own); time.Since(last) >= aliveEvery {
			now := s.options.Now().UTC()
			st.event(Event{Type: EventAlive, Now: &now})
		}
		if sent, err := st.flush(); err != nil {
			return
		} else if sent {
			last = time.Now()
		}
		for waiting := true; waiting; {
			select {
			case <-ctx.Done():
				return
			case <-s.end:
				return
			case _, ok := <-changes:
				if !ok {
					return
				}
				changed, dirty = time.Now(), true
			case <-news:
				changed, dirty, news = time.Now(), true, s.fleet.changed()
			case <-ticker.C:
				waiting = false
			}
		}
	}
}
