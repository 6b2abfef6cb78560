package admit

import (
	"context"
	"hash/maphash"
	"sync"
	"time"
)

// MostWaiting is the longest request that may wait, in bytes. A longer one is sent at once or refused.
const MostWaiting = 2048

const (
	// releaseEvery is the least time between two releases of waiting requests.
	releaseEvery = 5 * time.Millisecond
	// atOnce is how many requests are released before the handler is flushed.
	atOnce = 64
)

// Refusal is the reason for which a request is refused. The zero value is none.
type Refusal uint8

// The refusals.
const (
	Admitted  Refusal = iota
	Client            // this client asks too often
	Total             // all clients together do
	Newcomers         // more clients that were never served ask than the servers answer
)

// Asker describes a request and its client.
type Asker struct {
	// Tag identifies the client, 0 for one without an identity.
	Tag uint64
	// Also is a second name of the client, which has a limit of its own: 0 if there is none.
	Also uint64
	// XID is the request's transaction.
	XID uint32
	// Unicast tells that the request was sent to this host.
	Unicast bool
	// IsRequest tells that the message is a REQUEST, for an address that a server has offered.
	IsRequest bool
}

// Place is where a request waits.
type Place[T any] struct {
	note   T
	tag    uint64
	number int32
	class  Class
	n      int
	bytes  [MostWaiting]byte
}

// Handler sends requests that have waited. T is the caller's note on a request.
type Handler[T any] interface {
	// Send sends a request, whose bytes stay as they are until Flush.
	Send(note *T, b []byte, now int64)
	Flush()
	// Refused is called for a request that has waited too long. It must not block, or call the queue.
	Refused(note *T, b []byte, now int64)
}

// Queue has the waiting requests of one listener, or those that were sent to this host, while more machines ask than
// the servers answer. A request that need not wait is never put into it.
type Queue[T any] struct {
	limits *Limiter
	seed   maphash.Seed
	wake   chan struct{}

	mu     sync.Mutex
	gate   *Gate
	places [Places]Place[T] // not resident in memory until requests wait
	next   [atOnce]int32    // places; of Run only
}

// NewQueue makes a queue whose clients are held to limits, which several queues may share.
func NewQueue[T any](limit Limit, limits *Limiter) *Queue[T] {
	return &Queue[T]{limits: limits, seed: maphash.MakeSeed(), wake: make(chan struct{}, 1), gate: NewGate(limit)}
}

// transaction identifies a transaction.
type transaction struct {
	client uint64
	xid    uint32
}

// Ask decides about a request of length bytes. It is to be sent now (place is nil), waits in a place once [Queue.Keep]
// has put it there, or is refused.
func (q *Queue[T]) Ask(a *Asker, length int, now int64) (place *Place[T], refused Refusal) {
	q.mu.Lock()
	defer q.mu.Unlock()
	served := q.gate.Served(a.Tag)
	refused = q.limits.Allow(a, served, now)
	// Somebody who forges a served machine's chaddr uses up its allowance, with another transaction each time. The
	// machine repeats its own, and has a second allowance for that.
	if refused == Client && served &&
		q.gate.NoteRepeat(maphash.Comparable(q.seed, transaction{client: a.Tag, xid: a.XID}), now) &&
		q.limits.Repeats(a, served, now) {
		refused = Admitted
	}
	if refused != Admitted {
		return nil, refused
	}
	verdict, number, class := q.gate.Ask(a.Tag, a.IsRequest, now)
	switch {
	case verdict == Send:
		return nil, Admitted
	case verdict == Wait && length <= MostWaiting:
		place = &q.places[number]
		place.tag, place.number, place.class = a.Tag, number, class
		return place, Admitted
	case verdict == Wait:
		q.gate.Free(number)
	}
	return nil, Newcomers
}

// Knows tells whether the servers have given, or offered, a client an address before.
func (q *Queue[T]) Knows(tag uint64) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.gate.Served(tag) || tag != 0 && q.gate.offered.find(tag) != nil
}

// Keep puts a request into its place, where it waits. It copies the bytes.
func (q *Queue[T]) Keep(place *Place[T], note T, b []byte, now int64) {
	place.note = note
	place.n = copy(place.bytes[:], b)
	q.mu.Lock()
	q.gate.Put(place.number, place.class, place.tag, now)
	first := q.gate.Waiting() == 1
	q.mu.Unlock()
	if first {
		q.signal()
	}
}

// Cancel gives a place back that Ask gave, instead of Keep.
func (q *Queue[T]) Cancel(place *Place[T]) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.gate.Free(place.number)
}

// signal has Run look for requests that may be sent.
func (q *Queue[T]) signal() {
	select {
	case q.wake <- struct{}{}:
	default: // Run is about to
	}
}

// Answered notes a reply to a client; first tells that it is the first one to its request.
func (q *Queue[T]) Answered(tag uint64, answer Answer, first bool, now int64) {
	q.mu.Lock()
	q.gate.Answered(tag, answer, first, now)
	waiting := q.gate.Waiting() > 0
	q.mu.Unlock()
	if waiting {
		q.signal()
	}
}

// Waiting is how many requests wait.
func (q *Queue[T]) Waiting() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.gate.Waiting()
}

// Run sends waiting requests as the gate allows, until ctx is done. clock is the clock of all the other calls.
func (q *Queue[T]) Run(ctx context.Context, clock func() int64, to Handler[T]) {
	due := time.NewTimer(0)
	defer due.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-q.wake:
		case <-due.C:
		}
		if wait, more := q.Release(clock(), to); more {
			due.Reset(max(wait, releaseEvery))
		}
	}
}

// Release sends the requests that the gate allows now. If more wait, it returns the time until one of them may be sent.
// One goroutine calls it.
func (q *Queue[T]) Release(now int64, to Handler[T]) (wait time.Duration, more bool) {
	for n := atOnce; n == atOnce; {
		n = q.take(now, to)
		for _, number := range q.next[:n] {
			place := &q.places[number]
			to.Send(&place.note, place.bytes[:place.n], now)
		}
		to.Flush()
		q.mu.Lock()
		for _, number := range q.next[:n] {
			q.gate.Free(number)
		}
		wait, more = q.gate.Due(now), q.gate.Waiting() > 0
		q.mu.Unlock()
	}
	return wait, more
}

// take puts the places of requests that may be sent into next, and drops those that have waited too long.
func (q *Queue[T]) take(now int64, to Handler[T]) (n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for n < atOnce {
		verdict, number := q.gate.Next(now)
		switch verdict {
		case Wait:
			return n
		case Refuse:
			place := &q.places[number]
			to.Refused(&place.note, place.bytes[:place.n], now)
			q.gate.Free(number)
		case Send:
			q.next[n] = number
			n++
		}
	}
	return n
}
