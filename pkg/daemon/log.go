package daemon

import (
	"context"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/internal/logring"
)

// Log is a program's log. Whoever logs never waits for the reader of stderr, not under a mutex nor in an event loop.
type Log struct {
	*slog.Logger
	ring *logring.Ring
}

// logWait is how long the end of a program waits for the reader of its log; and once more so long, for the line that
// tells how many lines it did not get.
const logWait = time.Second

// OpenLog makes the program's log: text on a terminal, else JSON. A reader that goes away does not end the
// process: SIGPIPE is ignored from now on.
// The caller must close the log when nobody logs any more.
func (s Settings) OpenLog(w io.Writer) *Log {
	signal.Ignore(syscall.SIGPIPE)
	l := &Log{}
	l.ring = logring.New(w, func(lost uint64) { l.Warn("log lines were lost", "lines", lost) })
	text := isTerminal(w)
	l.Logger = slog.New(byLevel{usual: s.handler(l.ring, text), urgent: s.handler(l.ring.Urgent(), text)})
	return l
}

// isTerminal tells whether a person reads what is written.
func isTerminal(w io.Writer) bool {
	file, ok := w.(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(file.Fd()), unix.TCGETS)
	return err == nil
}

func (s Settings) handler(w io.Writer, text bool) slog.Handler {
	options := &slog.HandlerOptions{Level: s.LogLevel}
	if text {
		return slog.NewTextHandler(w, options)
	}
	return slog.NewJSONHandler(w, options)
}

// Lost is how many lines were lost since the start: the reader was gone or too slow.
func (l *Log) Lost() uint64 { return l.ring.Lost() }

// Close writes what was logged, for two seconds at most.
func (l *Log) Close() { l.ring.Close(logWait) }

// byLevel keeps room for warnings and errors, where the lines about requests fill the ring.
type byLevel struct{ usual, urgent slog.Handler }

// Enabled implements slog.Handler.
func (h byLevel) Enabled(ctx context.Context, level slog.Level) bool {
	return h.usual.Enabled(ctx, level)
}

// Handle implements slog.Handler.
func (h byLevel) Handle(ctx context.Context, r slog.Record) error {
	if r.Level >= slog.LevelWarn {
		return h.urgent.Handle(ctx, r)
	}
	return h.usual.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (h byLevel) WithAttrs(attrs []slog.Attr) slog.Handler {
	return byLevel{h.usual.WithAttrs(attrs), h.urgent.WithAttrs(attrs)}
}

// WithGroup implements slog.Handler.
func (h byLevel) WithGroup(name string) slog.Handler {
	return byLevel{h.usual.WithGroup(name), h.urgent.WithGroup(name)}
}
