package page

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"time"

	"github.com/tinkerbell/stack/pkg/boot/feed"
)

const (
	mediaEvents = "text/event-stream"
	mediaLines  = "application/x-ndjson"
	// streamBuffer is how much is gathered before it is sent, in bytes.
	streamBuffer = 64 << 10
	// aliveEvery is how often a stream says that it is alive.
	aliveEvery = 2 * time.Second
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
	failed     error
}

// asServerSentEvents is for browsers; a line of JSON each is for programs.
const asServerSentEvents = true

// open begins a stream; st is nil where the request was refused. The caller calls done at the stream's end.
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

// flushIfFull sends what was added when it is much; that it failed is found by the next flush.
func (st *stream) flushIfFull() {
	if st.b.Len() > streamBuffer {
		if _, err := st.flush(); err != nil {
			st.failed = err
		}
	}
}

// flush sends what was added, and tells whether there was anything.
func (st *stream) flush() (sent bool, err error) {
	if st.failed != nil || st.b.Len() == 0 {
		return false, st.failed
	}
	_ = st.controller.SetWriteDeadline(time.Now().Add(writeTimeout)) // a test's recorder has none
	if _, err := st.w.Write(st.b.Bytes()); err != nil {
		return false, err
	}
	st.b.Reset()
	if err := st.controller.Flush(); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return false, err
	}
	return true, nil
}

// watch calls show at once and after changes, gathered for a time, and sends what it adds to the stream, until the
// reader or the server has gone.
func (s *Server) watch(ctx context.Context, st *stream, show func(*snapshot)) {
	ticker := time.NewTicker(gather)
	defer ticker.Stop()
	var shown uint64
	var sources []feed.Source
	last := time.Now()
	for first := true; ; first = false {
		heard := s.options.Sources()
		if first || shown != s.options.Journal.Version() || !slices.Equal(heard, sources) {
			snap := s.look.snapshot()
			// The snapshot may be older than Version: then the newer one comes after the next tick.
			shown, sources = snap.journalVersion, heard
			show(snap)
		} else {
			s.look.noteReader()
			if time.Since(last) >= aliveEvery {
				now := s.options.Now().UTC()
				st.event(Event{Type: EventAlive, Now: &now})
			}
		}
		if sent, err := st.flush(); err != nil {
			return
		} else if sent {
			last = time.Now()
		}
		select {
		case <-ctx.Done():
			return
		case <-s.end:
			return
		case <-ticker.C:
		}
	}
}
