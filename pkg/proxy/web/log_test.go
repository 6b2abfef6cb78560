package web

import (
	"errors"
	"net/http"
	"os"
	"testing"
	"time"

	"github.com/tinkerbell/stack/pkg/proxy/loop"
)

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
