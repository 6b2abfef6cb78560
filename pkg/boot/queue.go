package boot

import "sync/atomic"

// Queue takes events from the goroutines that pass packets on, for the one goroutine that reads them. It is a ring of
// fixed size without a lock: an event that finds no place is counted and dropped, and no writer ever waits for the
// reader or for another writer. Any number of goroutines may call Put; one at a time may call Take.
type Queue struct {
	places []place
	mask   uint64

	_    [64]byte // Writers and the reader do not share cache lines.
	tail atomic.Uint64
	_    [56]byte
	head uint64 // the reader's own
	_    [56]byte

	dropped atomic.Uint64
}

// place holds one event. Its turn tells who may have it: n is for the writer of the nth event of all, n+1 for the
// reader of that event. (D. Vyukov's bounded queue.)
type place struct {
	turn  atomic.Uint64
	event Event
}

// NewQueue makes a queue with room for size events, rounded up to a power of two.
func NewQueue(size int) *Queue {
	n := 2
	for n < size {
		n *= 2
	}
	q := &Queue{places: make([]place, n), mask: uint64(n - 1)}
	for i := range q.places {
		q.places[i].turn.Store(uint64(i))
	}
	return q
}

// Put copies an event into the queue, or counts it as dropped where the queue is full. It does not keep e.
func (q *Queue) Put(e *Event) {
	at := q.tail.Load()
	for {
		p := &q.places[at&q.mask]
		switch turn := p.turn.Load(); {
		case turn == at:
			if q.tail.CompareAndSwap(at, at+1) {
				p.event.Assign(e)
				p.turn.Store(at + 1)
				return
			}
			at = q.tail.Load()
		case turn < at: // The reader has not come to what was put here a round ago.
			q.dropped.Add(1)
			return
		default:
			at = q.tail.Load()
		}
	}
}

// Take copies the oldest events into batch, removes them from the queue and returns how many there were.
func (q *Queue) Take(batch []Event) int {
	at := q.head
	n := 0
	for n < len(batch) {
		p := &q.places[at&q.mask]
		if p.turn.Load() != at+1 {
			break // Nothing there, or its writer is about to finish.
		}
		batch[n].Assign(&p.event)
		p.turn.Store(at + uint64(len(q.places)))
		n++
		at++
	}
	q.head = at
	return n
}

// Full reports whether more than three quarters of the places are taken. Like Take it is the reader's.
func (q *Queue) Full() bool { return q.tail.Load()-q.head > uint64(len(q.places))*3/4 }

// Dropped is how many events found no room so far.
func (q *Queue) Dropped() uint64 { return q.dropped.Load() }
