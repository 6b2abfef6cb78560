// Package loglimit logs trouble that a stranger can cause, or that lasts, without letting it fill the log.
package loglimit

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// every is how often the same trouble is logged. Every occurrence is counted in the metrics.
const every = time.Minute

// Limiter logs each message once a minute at most.
type Limiter struct {
	logger *slog.Logger
	mu     sync.Mutex
	last   map[string]int64
}

// New makes a limiter for a logger.
func New(logger *slog.Logger) *Limiter { return &Limiter{logger: logger} }

// WarnAt logs a message unless it was logged less than a minute ago. now is the relay's clock. The arguments are
// evaluated by args only when the line is written.
func (l *Limiter) WarnAt(now int64, message string, args func() []any) {
	l.mu.Lock()
	last, seen := l.last[message]
	quiet := seen && now-last < every.Nanoseconds()
	if !quiet {
		if l.last == nil {
			l.last = map[string]int64{}
		}
		l.last[message] = now
	}
	l.mu.Unlock()
	if !quiet {
		l.logger.Log(context.Background(), slog.LevelWarn, message, args()...) //nolint:sloglint // constants of the callers
	}
}

// TakenOver logs that a listener relays a machine which is another replica's to relay.
func (l *Limiter) TakenOver(now int64, listener string) {
	l.WarnAt(now, "relays a machine for another replica", func() []any {
		return []any{"listener", listener, "remedy", "look for the other replica's server and network: " +
			"it is there, and the machine still waits; a machine that no server knows waits, too"}
	})
}
