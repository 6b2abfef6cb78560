// Package loglimit logs trouble that a stranger can cause, or that lasts, without letting it fill the log.
package loglimit

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// Limiter logs each message so many times in a period at most. The next line of the message tells in "suppressed" how
// many were left out before it.
type Limiter struct {
	logger *slog.Logger
	lines  int
	period int64

	mu     sync.Mutex
	counts map[string]*count
}

// count is of one message's lines in the period that began at start.
type count struct {
	start      int64
	passed     int
	suppressed int
}

// New makes a limiter that lets so many lines of each message pass in a period.
func New(logger *slog.Logger, lines int, period time.Duration) *Limiter {
	return &Limiter{logger: logger, lines: lines, period: period.Nanoseconds(), counts: map[string]*count{}}
}

// Warn logs a warning at the time of the call. See [Limiter.LogAt].
func (l *Limiter) Warn(message string, args func() []any) {
	l.WarnAt(time.Now().UnixNano(), message, args)
}

// Error logs an error at the time of the call. See [Limiter.LogAt].
func (l *Limiter) Error(message string, args func() []any) {
	l.LogAt(time.Now().UnixNano(), slog.LevelError, message, args)
}

// WarnAt logs a warning. See [Limiter.LogAt].
func (l *Limiter) WarnAt(now int64, message string, args func() []any) {
	l.LogAt(now, slog.LevelWarn, message, args)
}

// LogAt logs a line unless too many of its message were logged in this period. now is the caller's clock, in
// nanoseconds. args, which may be nil, makes the line's arguments, and is called only if the line is written.
func (l *Limiter) LogAt(now int64, level slog.Level, message string, args func() []any) {
	ctx := context.Background()
	if !l.logger.Enabled(ctx, level) {
		return
	}
	suppressed, ok := l.allow(now, message)
	if !ok {
		return
	}
	var list []any
	if args != nil {
		list = args()
	}
	if suppressed > 0 {
		list = append(list, "suppressed", suppressed)
	}
	l.logger.Log(ctx, level, message, list...) //nolint:sloglint // constants of the callers
}

// allow counts a line, and returns how many were suppressed before it.
func (l *Limiter) allow(now int64, message string) (suppressed int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.counts[message]
	switch {
	case c == nil:
		c = &count{start: now}
		l.counts[message] = c
	case now-c.start >= l.period || now < c.start: // the clock may have been set back
		c.start, c.passed = now, 0
	}
	if c.passed >= l.lines {
		c.suppressed++
		return 0, false
	}
	c.passed++
	suppressed, c.suppressed = c.suppressed, 0
	return suppressed, true
}
