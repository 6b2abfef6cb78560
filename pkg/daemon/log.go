package daemon

import (
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
	l.Logger = slog.New(s.handler(l.ring, isTerminal(w)))
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
