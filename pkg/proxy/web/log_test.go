package web

import (
	"io"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
)

// stuckLog is a log that nobody reads.
type stuckLog struct {
	lockedLog
	full    chan struct{} // closed at the first line
	once    sync.Once
	release chan struct{}
}

func (l *stuckLog) Write(b []byte) (int, error) {
	l.once.Do(func() { close(l.full) })
	<-l.release
	return l.lockedLog.Write(b)
}

// A log that takes no more lines holds up those whose requests it is to tell of, and nobody else. No line is lost.
// (net/http's server would have the line written before the answer leaves.)
func TestStuckLog(t *testing.T) {
	addr := backend(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/none" {
			w.WriteHeader(http.StatusNotFound)
		}
		_, _ = io.WriteString(w, "ok")
	})
	log := &stuckLog{full: make(chan struct{}), release: make(chan struct{})}
	release := sync.OnceFunc(func() { close(log.release) })
	t.Cleanup(release)
	var errors AccessLog
	if err := errors.UnmarshalText([]byte("errors")); err != nil {
		t.Fatal(err)
	}
	r := startLogged(t, Settings{Pool: pool(addr), AccessLog: errors}, log)
	t.Cleanup(release) // before the front ends
	before := []talk{r.talk(t), r.talk(t), r.talk(t), r.talk(t)}
	for _, c := range before {
		c.ask(t, plainGet)
	}
	const none = "GET /none HTTP/1.1\r\nHost: h\r\n\r\n"
	for _, c := range before[:2] {
		c.ask(t, none)
	}
	<-log.full
	for _, c := range append(before[2:], r.talk(t), r.talk(t)) {
		_ = c.SetDeadline(time.Now().Add(10 * time.Second))
		if response, _ := c.ask(t, plainGet); response.StatusCode != 200 {
			t.Errorf("got %d", response.StatusCode)
		}
	}
	release()
	for _, c := range before {
		if response, _ := c.ask(t, plainGet); response.StatusCode != 200 {
			t.Errorf("got %d when the log goes on", response.StatusCode)
		}
	}
	before[0].ask(t, none)
	eventually(t, "the requests are counted", func() bool {
		return testutil.ToFloat64(r.requests.WithLabelValues("r", "404")) == 3 && r.settled()
	})
	if err := r.stop(); err != nil {
		t.Error(err)
	}
	if n := len(accessLine.FindAllString(log.String(), -1)); n != 3 {
		t.Errorf("%d lines, want 3", n)
	}
}
