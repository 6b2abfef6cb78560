// Package notice logs trouble that a stranger can cause, or that lasts, without letting it fill the log.
package notice

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// every is how often the same trouble is logged. Every occurrence is counted in the metrics.
const every = time.Minute

// Board logs each message once a minute at most.
type Board struct {
	logger *slog.Logger
	mu     sync.Mutex
	last   map[string]int64
}

// New makes a board for a logger.
func New(logger *slog.Logger) *Board { return &Board{logger: logger} }

// WarnAt logs a message unless it was logged less than a minute ago. now is the relay's clock. The arguments are
// evaluated by args only when the line is written.
func (n *Board) WarnAt(now int64, message string, args func() []any) {
	n.mu.Lock()
	last, seen := n.last[message]
	quiet := seen && now-last < every.Nanoseconds()
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

// TakenOver logs that a listener relays a machine which is another replica's to relay.
func (n *Board) TakenOver(now int64, listener string) {
	n.WarnAt(now, "relays a machine for another replica", func() []any {
		return []any{"listener", listener, "remedy", "look for the other replica's server and network: " +
			"it is there, and the machine still waits; a machine that no server knows waits, too"}
	})
}
