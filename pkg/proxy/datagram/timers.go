package datagram

import (
	"container/heap"
	"time"
)

// timers are the sessions that wait for a time, the earliest first (container/heap). A session whose time becomes a
// later one, as with most datagrams of its client, keeps its place: it is looked at too early, and put back.
type timers[T any] []*Session[T]

// timer is a session's place among the timers.
type timer struct {
	due   time.Time // when [Handler.Due] is called; zero is never
	wake  time.Time // when the session is looked at: due, or earlier
	place int       // in the queue, plus 1; 0 is none
}

// Len implements heap.Interface.
func (t timers[T]) Len() int { return len(t) }

// Less implements heap.Interface.
func (t timers[T]) Less(i, j int) bool { return t[i].timer.wake.Before(t[j].timer.wake) }

// Swap implements heap.Interface.
func (t timers[T]) Swap(i, j int) {
	t[i], t[j] = t[j], t[i]
	t[i].timer.place, t[j].timer.place = i+1, j+1
}

// Push implements heap.Interface.
func (t *timers[T]) Push(x any) {
	s := x.(*Session[T])
	*t = append(*t, s)
	s.timer.place = len(*t)
}

// Pop implements heap.Interface.
func (t *timers[T]) Pop() any {
	last := len(*t) - 1
	s := (*t)[last]
	(*t)[last], *t = nil, (*t)[:last]
	s.timer.place = 0
	return s
}

// CallAt has [Handler.Due] called at a time, in place of the time that was set before; the zero time is never.
func (w *Worker[T]) CallAt(s *Session[T], at time.Time) {
	if !s.open {
		return
	}
	s.timer.due = at
	switch {
	case at.IsZero():
	case s.timer.place == 0:
		s.timer.wake = at
		heap.Push(&w.timers, s)
	case at.Before(s.timer.wake):
		s.timer.wake = at
		heap.Fix(&w.timers, s.timer.place-1)
	}
}

// forget takes a session that is closed out of the timers.
func (w *Worker[T]) forget(s *Session[T]) {
	if s.timer.place > 0 {
		heap.Remove(&w.timers, s.timer.place-1)
	}
}

// callDue calls Handler.Due for the sessions whose time has come.
func (w *Worker[T]) callDue() {
	for len(w.timers) > 0 && !w.timers[0].timer.wake.After(w.now) {
		s := w.timers[0]
		switch due := s.timer.due; {
		case due.After(w.now):
			s.timer.wake = due
			heap.Fix(&w.timers, 0)
		case due.IsZero():
			heap.Pop(&w.timers)
		default:
			heap.Pop(&w.timers)
			s.timer.due = time.Time{}
			w.handler.Due(w, s)
		}
	}
}
