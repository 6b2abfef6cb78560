package daemon

import (
	"bytes"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
)

// stuck is a reader of a log that does not read before it is let go.
type stuck struct {
	let  chan struct{}
	mu   sync.Mutex
	text bytes.Buffer
}

func (s *stuck) Write(b []byte) (int, error) {
	<-s.let
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(b)
}

// Lines about requests that fill the log while nobody reads it leave room for what went wrong, and for what a logger
// with attributes says of it.
func TestRequestsLeaveRoomForWarnings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reader := &stuck{let: make(chan struct{})}
		log := Settings{}.OpenLog(reader)
		for log.Lost() == 0 {
			log.Info("request", "path", strings.Repeat("x", 200))
		}
		log.Warn("disk full")
		log.With("route", "files").Error("failed to open file")
		log.WithGroup("drain").Warn("draining late", "seconds", 1)
		close(reader.let)
		log.Close()
		for _, want := range []string{"disk full", "failed to open file", "draining late", "log lines were lost"} {
			if n := strings.Count(reader.text.String(), want); n != 1 {
				t.Errorf("%q was logged %d times", want, n)
			}
		}
	})
}
