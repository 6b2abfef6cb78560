package machines

import (
	"context"
	"fmt"
	"time"
)

// idleAttempt is how long an attempt may hear nothing before the machine tries again, as firmware does.
const idleAttempt = 20 * time.Second

// pause is what a machine waits after an attempt that failed.
const pause = 500 * time.Millisecond

// progress gives a step up when nothing new has come for a time: neither a byte that no attempt had before, nor an
// answer. Whatever moves goes on, however slowly.
type progress struct {
	patience time.Duration
	far      int64 // bytes that the attempt that got farthest has got
	stop     *time.Timer
	attempt  *time.Timer
}

// newProgress begins a step. Its context ends, with a cause that says how far it got, when nothing moves.
func newProgress(ctx context.Context, patience time.Duration) (*progress, context.Context, context.CancelFunc) {
	p := &progress{patience: patience}
	ctx, cancel := context.WithCancelCause(ctx)
	p.stop = time.AfterFunc(patience, func() { cancel(fmt.Errorf("nothing has moved for %s", patience)) })
	return p, ctx, func() {
		p.stop.Stop()
		cancel(nil)
	}
}

// begin begins an attempt, whose context ends when nothing comes.
func (p *progress) begin(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	p.attempt = time.AfterFunc(idleAttempt, func() { cancel(fmt.Errorf("nothing came for %s", idleAttempt)) })
	return ctx, func() {
		p.attempt.Stop()
		cancel(nil)
	}
}

// at tells that an attempt has so many bytes.
func (p *progress) at(bytes int64) {
	p.attempt.Reset(idleAttempt)
	if bytes > p.far {
		p.far = bytes
		p.stop.Reset(p.patience)
	}
}
