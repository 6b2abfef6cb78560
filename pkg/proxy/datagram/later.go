package datagram

import "sync"

// later is what other goroutines have a worker do.
type later struct {
	mu  sync.Mutex
	all []func()
}

// Do has the worker call a function soon, between two datagrams. It may be called from any goroutine. What comes when
// the worker has ended is not called.
func (w *Worker[T]) Do(f func()) {
	w.later.mu.Lock()
	w.later.all = append(w.later.all, f)
	w.later.mu.Unlock()
	w.poller.Wake()
}

// take returns what there is to do.
func (l *later) take() []func() {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := l.all
	l.all = nil
	return all
}
