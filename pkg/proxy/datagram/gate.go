package datagram

import (
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

// NewGate lets perSecond lines pass in each second.
func NewGate(perSecond int) *Gate { return &Gate{limit: perSecond} }

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
