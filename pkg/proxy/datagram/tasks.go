package datagram

import "sync"

// tasks are functions that other goroutines have a worker call.
type tasks struct {
	mu  sync.Mutex
	all []func()
}

// Do has the worker call a function soon, between two datagrams. It may be called from any goroutine. A worker that has
// ended calls no more functions.
func (w *Worker[T]) Do(f func()) {
	w.tasks.mu.Lock()
	w.tasks.all = append(w.tasks.all, f)
	w.tasks.mu.Unlock()
	w.poller.Wake()
}

// take returns the functions that are to be called, and forgets them.
func (t *tasks) take() []func() {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := t.all
	t.all = nil
	return all
}
