package datagram

import (
	"log/slog"
	"sync"
	"time"
)

// LogLimiter bounds the log lines that peers can cause: it passes so many in a second, and counts the rest.
type LogLimiter struct {
	limit int

	mu         sync.Mutex
	second     int64
	passed     int
	suppressed int
}

// silent is the logger of a limiter that is over its limit.
var silent = slog.New(slog.DiscardHandler)

// NewLogLimiter lets perSecond lines pass in each second.
func NewLogLimiter(perSecond int) *LogLimiter { return &LogLimiter{limit: perSecond} }

// Pass returns the logger for one line, which tells how many were suppressed before it, or one that is silent.
func (l *LogLimiter) Pass(log *slog.Logger, now time.Time) *slog.Logger {
	suppressed, ok := l.Open(now)
	switch {
	case !ok:
		return silent
	case suppressed > 0:
		return log.With("suppressed", suppressed)
	}
	return log
}

// Open asks for one line. With it comes the number of lines suppressed since the last one that passed.
func (l *LogLimiter) Open(now time.Time) (suppressed int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if second := now.Unix(); second != l.second {
		l.second, l.passed = second, 0
	}
	if l.passed >= l.limit {
		l.suppressed++
		return 0, false
	}
	l.passed++
	suppressed, l.suppressed = l.suppressed, 0
	return suppressed, true
}
