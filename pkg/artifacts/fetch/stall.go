package fetch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"
)

// stallWatch ends an attempt in which no byte arrives for the stall timeout, however long the whole takes.
type stallWatch struct {
	cancel context.CancelCauseFunc
	timer  *time.Timer
	stall  time.Duration
	have   atomic.Int64 // bytes that came, those of earlier attempts that this one goes on from included
}

// watch begins an attempt. Its context's cause is errStalled, and says how many bytes had come, where the attempt
// stalled.
func (c Config) watch(ctx context.Context) (context.Context, *stallWatch) {
	ctx, cancel := context.WithCancelCause(ctx)
	w := &stallWatch{cancel: cancel, stall: c.StallTimeout.D()}
	w.timer = time.AfterFunc(w.stall, func() {
		cancel(fmt.Errorf("%w: none for %s, %d bytes had come", errStalled, w.stall, w.have.Load()))
	})
	return ctx, w
}

func (w *stallWatch) end() {
	w.timer.Stop()
	w.cancel(nil)
}

// fed tells that something has arrived.
func (w *stallWatch) fed() { w.timer.Reset(w.stall) }

// reader feeds the watch with each read that brings something. Its errors are errRead.
func (w *stallWatch) reader(r io.Reader) io.Reader {
	return reader(func(b []byte) (int, error) {
		n, err := r.Read(b)
		if n > 0 {
			w.have.Add(int64(n))
			w.fed()
		}
		return n, err
	})
}

// errRead is a reader's, where that and a writer work in one copy.
var errRead = errors.New("failed to read")

// reader reads by a function, and marks what it returns by errRead.
type reader func([]byte) (int, error)

func (r reader) Read(b []byte) (int, error) {
	n, err := r(b)
	if err != nil && !errors.Is(err, io.EOF) {
		err = fmt.Errorf("%w: %w", errRead, err)
	}
	return n, err
}
