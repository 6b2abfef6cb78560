package endpoint

import (
	"log/slog"
	"sync"
	"testing"
	"time"
)

// stuck is a log that nobody reads yet.
type stuck struct {
	lines chan struct{} // has one for each that came
	read  chan struct{} // closed when somebody reads
}

func (s stuck) Write(b []byte) (int, error) {
	s.lines <- struct{}{}
	<-s.read
	return len(b), nil
}

// Who reports a success, asks for an endpoint or looks at them does not wait for the log.
func TestStuckLog(t *testing.T) {
	log := stuck{make(chan struct{}, 100), make(chan struct{})}
	addrs := fixedPool(2, RoundRobin, Health{}).config.Sources
	p := NewPool(Config{Route: "r", Sources: addrs})
	p.logTo(slog.New(slog.NewTextHandler(log, nil)))
	bad, good := p.view.Load().all[0], p.view.Load().all[1]
	var failing sync.WaitGroup
	failing.Go(func() {
		for range 3 {
			bad.Failed(errTest)
		}
	})
	<-log.lines
	done := make(chan struct{})
	go func() {
		defer close(done)
		good.Failed(errTest)
		good.Succeeded()
		if s := p.Status(); s[0].Health != "ejected" || s[1].Health != "healthy" {
			t.Errorf("got %v", s)
		}
	}()
	select {
	case <-done:
	case <-time.After(30 * time.Second):
		t.Error("waited for the log")
	}
	close(log.read)
	<-done
	failing.Wait()
}
