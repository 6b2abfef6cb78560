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

// What is lost while nobody reads the log is told of.
func TestLostLinesAreTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reader := &stuck{let: make(chan struct{})}
		log := Settings{}.OpenLog(reader)
		for log.Lost() == 0 {
			log.Info("request", "path", strings.Repeat("x", 200))
		}
		close(reader.let)
		log.Close()
		if n := strings.Count(reader.text.String(), "log lines were lost"); n != 1 {
			t.Errorf("it was told %d times", n)
		}
	})
}
