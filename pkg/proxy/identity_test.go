package proxy

import (
	"bytes"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/tinkerbell/stack/pkg/route"
)

// warnings collects the log.
type warnings struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (w *warnings) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.Write(b)
}

func (w *warnings) take() (lines []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for line := range strings.Lines(w.text.String()) {
		if strings.Contains(line, "pass-through to a backend of an HTTP route") {
			lines = append(lines, line)
		}
	}
	w.text.Reset()
	return lines
}

// The log tells of a pass-through to a backend that believes us when it comes, and not again while it lasts.
func TestA1WarnsOfPassThrough(t *testing.T) {
	backend := hello(t, "a")
	through := row("through", route.TCP, free(t), backend)
	web := row("web", route.HTTP, free(t), backend)
	both, alone := table(web, through), table(web)
	var log warnings
	p := start(t, Options{Table: both, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	expect := func(when string, want int) {
		t.Helper()
		got := log.take()
		if len(got) != want {
			t.Errorf("%s: %q, want %d", when, got, want)
		}
		for _, line := range got {
			if !strings.Contains(line, "level=WARN") || !strings.Contains(line, "route=through") ||
				!strings.Contains(line, "http_route=web") || !strings.Contains(line, "backend="+backend.String()) {
				t.Error(line)
			}
		}
	}
	expect("at the start", 1)
	changed := table(web, through)
	changed.Routes[0].Limits.Connections = 5
	p.apply(t, changed)
	expect("at a reload that changes something else", 0)
	p.apply(t, alone)
	expect("without it", 0)
	through.Listen = []route.Listen{free(t)} // the other one may take a while to close
	p.apply(t, table(web, through))
	expect("when it comes again", 1)
	quiet := through
	quiet.TCP.IgnoresAddressHeaders = true
	p.apply(t, table(web, quiet))
	expect("where the backend ignores the headers", 0)
}
