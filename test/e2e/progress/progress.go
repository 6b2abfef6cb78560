// Package progress gives a step up when nothing has moved for its patience, however long the whole step takes, and says
// how far the step came. A busy machine makes everything slow; only what stands still has failed.
package progress

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"time"
)

// Patience says when a step is given up.
type Patience struct {
	// Quiet is how long nothing may move.
	Quiet time.Duration
	// Signs are looked at from time to time, by another goroutine. One whose text is not what it was has moved. The last
	// texts are in the error.
	Signs []func() string
	// Waited is how long in all the step's process has waited for a processor. That time does not count as quiet. It may
	// be nil.
	Waited func() time.Duration
}

// Stalled is the error of a step that was given up.
type Stalled struct {
	Quiet time.Duration // for which nothing has moved
	After time.Duration // since the step began
	Far   []string      // how far it came; empty: nothing moved at all
}

// Error says how far the step came.
func (s *Stalled) Error() string {
	round := func(d time.Duration) time.Duration { return d.Round(10 * time.Millisecond) }
	if len(s.Far) == 0 {
		return fmt.Sprintf("nothing moved for %s", round(s.Quiet))
	}
	return fmt.Sprintf("nothing moved for %s, given up after %s: %s", round(s.Quiet), round(s.After),
		strings.Join(s.Far, "; "))
}

// Timeout reports true, as the errors of package net do.
func (s *Stalled) Timeout() bool { return true }

// Watch is a step under way.
type Watch struct {
	patience Patience
	cancel   context.CancelCauseFunc
	began    time.Time
	ended    sync.WaitGroup
	seen     []string      // the signs' texts; of the watching goroutine alone
	counted  time.Time     // the last movement that look knew of; likewise
	waited   time.Duration // of Patience.Waited then; likewise

	mu    sync.Mutex
	last  time.Time // when something moved
	far   string
	bytes int64 // that came
	sent  int64
}

// Begin begins a step. Its context ends with ctx, by [Watch.End], and when nothing has moved for the patience: then its
// cause is a [*Stalled].
func Begin(ctx context.Context, patience Patience) (context.Context, *Watch) {
	now := time.Now()
	w := &Watch{patience: patience, began: now, last: now, counted: now, seen: make([]string, len(patience.Signs))}
	ctx, w.cancel = context.WithCancelCause(ctx)
	for i, sign := range patience.Signs {
		w.seen[i] = sign()
	}
	if patience.Waited != nil {
		w.waited = patience.Waited()
	}
	w.ended.Go(func() { w.run(ctx) })
	return ctx, w
}

// End ends the step's context and waits for what watched it.
func (w *Watch) End() {
	w.cancel(nil)
	w.ended.Wait()
}

// Moved tells that the step has come as far as it says.
func (w *Watch) Moved(far string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.last, w.far = time.Now(), far
}

// Bytes tells that some more bytes have come. None are no movement.
func (w *Watch) Bytes(n int) {
	if n <= 0 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.last, w.bytes = time.Now(), w.bytes+int64(n)
}

// Sent tells that some more bytes have gone out.
func (w *Watch) Sent(n int) {
	if n <= 0 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.last, w.sent = time.Now(), w.sent+int64(n)
}

// Why is the reason of a failure: that the step was given up, where it was, or else err.
func (w *Watch) Why(ctx context.Context, err error) error {
	if stalled := new(Stalled); err != nil && errors.As(context.Cause(ctx), &stalled) && !errors.As(err, &stalled) {
		return fmt.Errorf("%w (%w)", context.Cause(ctx), err)
	}
	return err
}

func (w *Watch) run(ctx context.Context) {
	const looks = 8 // at the signs, within the patience
	tick := max(w.patience.Quiet/looks, time.Millisecond)
	timer := time.NewTimer(tick)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		left := w.look()
		if left <= 0 {
			w.cancel(w.stalled())
			return
		}
		timer.Reset(min(tick, left))
	}
}

// look looks at the signs and says how much of the patience is left.
func (w *Watch) look() time.Duration {
	moved := false
	for i, sign := range w.patience.Signs {
		if text := sign(); text != w.seen[i] {
			w.seen[i], moved = text, true
		}
	}
	waited := time.Duration(0)
	if w.patience.Waited != nil {
		waited = w.patience.Waited()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if moved {
		w.last = time.Now()
	}
	quiet := time.Since(w.last)
	if !w.last.Equal(w.counted) {
		w.counted, w.waited = w.last, waited
	}
	return w.patience.Quiet + max(0, waited-w.waited) - quiet
}

func (w *Watch) stalled() *Stalled {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := &Stalled{Quiet: time.Since(w.last), After: time.Since(w.began)}
	if w.far != "" {
		s.Far = append(s.Far, w.far)
	}
	if w.sent > 0 {
		s.Far = append(s.Far, fmt.Sprintf("%d bytes were sent", w.sent))
	}
	if w.bytes > 0 {
		s.Far = append(s.Far, fmt.Sprintf("%d bytes came", w.bytes))
	}
	for _, text := range w.seen {
		if text != "" {
			s.Far = append(s.Far, text)
		}
	}
	return s
}

// Reader counts what is read.
func (w *Watch) Reader(r io.Reader) io.Reader { return reader{r, w} }

type reader struct {
	io.Reader
	watch *Watch
}

func (r reader) Read(b []byte) (int, error) {
	n, err := r.Reader.Read(b)
	r.watch.Bytes(n)
	return n, err
}

// Dialer counts what is read from the connections that dial makes.
func (w *Watch) Dialer(dial DialFunc) DialFunc {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return conn{c, w}, nil
	}
}

// DialFunc connects, as [net.Dialer.DialContext] does.
type DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error)

type conn struct {
	net.Conn
	watch *Watch
}

func (c conn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.watch.Bytes(n)
	return n, err
}

// Until asks again and again, with a pause between, until look returns nil. It gives up when nothing has moved for the
// patience; what look says is in the error, and is no sign: an error may name another port each time.
// An error by [Final] ends it at once.
func Until(ctx context.Context, patience Patience, pause time.Duration, look func(context.Context) error) error {
	ctx, w := Begin(ctx, patience)
	defer w.End()
	for {
		err := look(ctx)
		if err == nil {
			return nil
		}
		if errors.As(err, new(final)) {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", context.Cause(ctx), err)
		case <-time.After(pause):
		}
	}
}

// Final is an error after which asking again is of no use.
func Final(err error) error { return final{err} }

type final struct{ error }

func (f final) Unwrap() error { return f.error }
