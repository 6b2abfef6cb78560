package web

import (
	"errors"
	"io"
	"net/http"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/tinkerbell/stack/pkg/proxy/loop"
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

// A connection whose request was logged waits for the next one as any other: for the idle time, not for a header's, and
// a drain ends it at once.
func TestLoggedRequestLeavesItsConnectionIdle(t *testing.T) {
	t.Parallel()
	withAndWithout(t, testLoggedRequestLeavesItsConnectionIdle)
}

func testLoggedRequestLeavesItsConnectionIdle(t *testing.T, start starter) {
	addr := backend(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNotFound) })
	var failures AccessLog
	if err := failures.UnmarshalText([]byte("errors")); err != nil {
		t.Fatal(err)
	}
	log := &lockedLog{}
	r := start(t, Settings{
		Pool: pool(addr), AccessLog: failures, Drain: time.Minute, Timeouts: Timeouts{Header: loop.Tick},
	}, log)
	c := r.talk(t)
	c.ask(t, plainGet)
	eventually(t, "the request is logged", func() bool { return accessLine.MatchString(log.String()) })
	_ = c.SetReadDeadline(time.Now().Add(4 * loop.Tick))
	if _, err := c.Peek(1); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("while it is idle the connection gets %v", err)
	}
	_ = c.SetDeadline(time.Now().Add(30 * time.Second))
	if response, _ := c.ask(t, plainGet); response.StatusCode != http.StatusNotFound {
		t.Errorf("got %d", response.StatusCode)
	}
	eventually(t, "both requests are logged", func() bool { return len(accessLine.FindAllString(log.String(), -1)) == 2 })
	if n := len(r.loopConns()); r.own == nil && n != 1 {
		t.Errorf("%d connections are in a loop, want 1", n)
	}
	if err := r.stop(); err != nil {
		t.Error(err)
	}
}
