package page

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"slices"
	"time"

	"github.com/tinkerbell/stack/pkg/boot/feed"
)

const (
	// aliveEvery is how often a stream says that it is alive.
	aliveEvery = 2 * time.Second
	// writeTimeout is how long a reader may take for what it is sent.
	writeTimeout = 10 * time.Second
	// maxStreams is how many streams may be open at once; the admin port's connections are bounded as well.
	maxStreams = 48
)

// stream writes server-sent events to one reader.
type stream struct {
	w          http.ResponseWriter
	controller *http.ResponseController
	b          bytes.Buffer
}

// open begins a stream; st is nil where the request was refused. The caller calls done at the stream's end.
func (s *Server) open(w http.ResponseWriter) (st *stream, done func()) {
	if s.streams.Add(1) > maxStreams || s.ended() {
		s.streams.Add(-1)
		w.Header().Set("Retry-After", "5")
		refuse(w, http.StatusServiceUnavailable, "too many look already, or the program ends")
		return nil, nil
	}
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Accel-Buffering", "no") // nginx in front would keep events back
	return &stream{w: w, controller: http.NewResponseController(w)}, func() { s.streams.Add(-1) }
}

// add adds an event whose encoding is JSON on one line.
func (st *stream) add(kind string, encoded []byte) {
	st.b.WriteString("event: " + kind + "\ndata: ")
	st.b.Write(encoded)
	st.b.WriteString("\n\n")
}

// flush sends what was added, and tells whether there was anything.
func (st *stream) flush() (sent bool, err error) {
	if st.b.Len() == 0 {
		return false, nil
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
				st.add("alive", []byte("{}"))
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
