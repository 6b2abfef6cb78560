package relay

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// noticeEvery is how often the same trouble is logged. Every occurrence is counted in the metrics.
const noticeEvery = time.Minute

// notices logs trouble that a stranger can cause, or that lasts, without letting it fill the log.
type notices struct {
	logger *slog.Logger
	mu     sync.Mutex
	last   map[string]int64
}

// warn logs a message unless it was logged less than a minute ago. now is the relay's clock. The arguments are
// evaluated by args only when the line is written.
func (n *notices) warn(now int64, message string, args func() []any) {
	n.mu.Lock()
	last, seen := n.last[message]
	quiet := seen && now-last < noticeEvery.Nanoseconds()
	if !quiet {
		if n.last == nil {
			n.last = map[string]int64{}
		}
		n.last[message] = now
	}
	n.mu.Unlock()
	if !quiet {
		n.logger.Log(context.Background(), slog.LevelWarn, message, args()...) //nolint:sloglint // constants of the callers
	}
}
