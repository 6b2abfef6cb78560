package endpoint

import (
	"context"
	"log/slog"
)

// lines are logged once the pool's lock is let go: nobody may read the log, and those who only need the lock for a
// moment are not to wait for it.
type lines struct {
	slog.Handler
	pool *Pool
}

// Handle implements slog.Handler. The caller holds pool.mu.
func (l lines) Handle(_ context.Context, r slog.Record) error {
	l.pool.unsaid = append(l.pool.unsaid, r.Clone())
	return nil
}

// logTo has the pool log there. Only who holds mu may use p.log.
func (p *Pool) logTo(log *slog.Logger) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	p.said, p.log = log.Handler(), slog.New(lines{log.Handler(), p})
}

// unlock lets go of mu, and logs what was to be said meanwhile.
func (p *Pool) unlock() {
	unsaid := p.unsaid
	p.unsaid = nil
	p.mu.Unlock()
	for _, r := range unsaid {
		_ = p.said.Handle(context.Background(), r)
	}
}
