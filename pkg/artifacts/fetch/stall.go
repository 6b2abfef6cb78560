package fetch

import (
	"context"
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

// reader feeds the watch with each read that brings something.
func (w *stallWatch) reader(r io.Reader) io.Reader { return watched{r, w} }

type watched struct {
	io.Reader
	watch *stallWatch
}

func (w watched) Read(b []byte) (int, error) {
	n, err := w.Reader.Read(b)
	if n > 0 {
		w.watch.have.Add(int64(n))
		w.watch.fed()
	}
	return n, err
}
