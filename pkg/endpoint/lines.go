package endpoint

import (
	"context"
	"log/slog"
)

// lines gathers log lines while the pool's lock is held. They are logged once it is let go: a write to the log may
// block, and a connection that needs the lock must not wait for that.
type lines struct {
	slog.Handler
	pool *Pool
}

// Handle implements slog.Handler. The caller holds pool.mu.
func (l lines) Handle(_ context.Context, r slog.Record) error {
	l.pool.unsaid = append(l.pool.unsaid, r.Clone())
	return nil
}

// logTo has the pool log there. p.log may be used only while mu is held.
func (p *Pool) logTo(log *slog.Logger) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	p.said, p.log = log.Handler(), slog.New(lines{log.Handler(), p})
}

// unlock lets go of mu, and logs the lines that were gathered meanwhile.
func (p *Pool) unlock() {
	unsaid := p.unsaid
	p.unsaid = nil
	p.mu.Unlock()
	for _, r := range unsaid {
		_ = p.said.Handle(context.Background(), r)
	}
}
