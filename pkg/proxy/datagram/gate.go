package datagram

import (
	"log/slog"
	"sync"
	"time"
)

// A Gate bounds what others can make us log: so many lines in a second, the rest counted.
type Gate struct {
	limit int

	mu         sync.Mutex
	second     int64
	passed     int
	suppressed int
}

// silent is the logger of a shut gate.
var silent = slog.New(slog.DiscardHandler)

// NewGate lets perSecond lines pass in each second.
func NewGate(perSecond int) *Gate { return &Gate{limit: perSecond} }

// Pass returns the logger for one line, which tells how many were suppressed before it, or one that is silent.
func (g *Gate) Pass(log *slog.Logger, now time.Time) *slog.Logger {
	suppressed, ok := g.Open(now)
	switch {
	case !ok:
		return silent
	case suppressed > 0:
		return log.With("suppressed", suppressed)
	}
	return log
}

// Open asks for one line. With it comes the number of lines suppressed since the last one that passed.
func (g *Gate) Open(now time.Time) (suppressed int, ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if second := now.Unix(); second != g.second {
		g.second, g.passed = second, 0
	}
	if g.passed >= g.limit {
		g.suppressed++
		return 0, false
	}
	g.passed++
	suppressed, g.suppressed = g.suppressed, 0
	return suppressed, true
}
