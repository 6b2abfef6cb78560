package admit

import (
	"context"
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"
)

// MostWaiting is the longest request that may wait, in bytes. Longer ones go at once or not at all.
const MostWaiting = 2048

const (
	// releaseEvery is the least time between two looks at what waits.
	releaseEvery = 5 * time.Millisecond
	// crowdedFor is how long after the last request that had to wait servers are not blamed for silence.
	crowdedFor = 30 * time.Second
	// atOnce is how many requests are released before the way is flushed.
	atOnce = 64
)

// Refusal says why a request goes no further. The zero value is none.
type Refusal uint8

// The refusals.
const (
	Admitted  Refusal = iota
	Client            // this client asks too often
	Total             // all clients together do
	Newcomers         // more clients that were never served ask than the servers answer
)

// Asker is who sends a request, and which.
type Asker struct {
	// Tag is what the client is known by, 0 where it shows nothing.
	Tag uint64
	// Also is a second name of the client, which has an allowance of its own: 0 if there is none.
	Also uint64
	// XID is the request's transaction.
	XID uint32
	// Unicast tells that it was sent to this host.
	Unicast bool
	// Requests tells that it asks for what a server has offered.
	Requests bool
}

// Slot is where a request waits.
type Slot[T any] struct {
	note  T
	tag   uint64
	place int32
	class Class
	n     int
	bytes [MostWaiting]byte
}

// Way is where a request goes that has waited. T is what the caller has to know about it.
type Way[T any] interface {
	// Send sends a request, which stays where it is until Flush.
	Send(note *T, b []byte, now int64)
	Flush()
	// Refused tells of a request that has waited in vain. It must not wait itself, or ask the room.
	Refused(note *T, b []byte, now int64)
}

// Room is where the requests of one listener, or those sent to this host, wait while more machines ask than the servers
// answer. What need not wait never is in it.
type Room[T any] struct {
	limits    *Limiter
	seed      maphash.Seed
	wake      chan struct{}
	crowdedAt atomic.Int64 // when a request last had to wait, or was refused; 0: never

	mu    sync.Mutex
	gate  *Gate
	slots [Places]Slot[T] // untouched, and so not resident, until requests wait
	next  [atOnce]int32   // places; of Run only
}

// NewRoom makes a room whose clients are held to limits, which rooms may share.
func NewRoom[T any](limit Limit, limits *Limiter) *Room[T] {
	return &Room[T]{limits: limits, seed: maphash.MakeSeed(), wake: make(chan struct{}, 1), gate: NewGate(limit)}
}

// transaction is what distinguishes two transactions.
type transaction struct {
	client uint64
	xid    uint32
}

// Ask decides about a request of that many bytes: it goes to the servers now (no slot), waits in a slot once it is put
// there by [Room.Keep], or is one too many. served tells that the servers have given its client an address before.
func (r *Room[T]) Ask(a *Asker, length int, now int64) (slot *Slot[T], served bool, refused Refusal) {
	r.mu.Lock()
	defer r.mu.Unlock()
	served = r.gate.Served(a.Tag)
	refused = r.limits.Allow(a, served, now)
	if refused == Client && served &&
		r.gate.Again(maphash.Comparable(r.seed, transaction{client: a.Tag, xid: a.XID}), now) &&
		r.limits.Repeats(a, served, now) {
		refused = Admitted
	}
	if refused != Admitted {
		return nil, served, refused
	}
	verdict, place, class := r.gate.Ask(a.Tag, a.Requests, now)
	switch {
	case verdict == Send:
		return nil, served, Admitted
	case verdict == Wait && length <= MostWaiting:
		slot = &r.slots[place]
		slot.tag, slot.place, slot.class = a.Tag, place, class
		return slot, served, Admitted
	case verdict == Wait:
		r.gate.Free(place)
	}
	r.crowdedAt.Store(now)
	return nil, served, Newcomers
}

// Keep has a request wait in its slot. It copies what is to be sent.
func (r *Room[T]) Keep(slot *Slot[T], note T, b []byte, now int64) {
	slot.note = note
	slot.n = copy(slot.bytes[:], b)
	r.crowdedAt.Store(now)
	r.mu.Lock()
	r.gate.Put(slot.place, slot.class, slot.tag, now)
	first := r.gate.Waiting() == 1
	r.mu.Unlock()
	if first {
		r.rouse()
	}
}

// Leave gives a slot back that Ask gave, instead of Keep.
func (r *Room[T]) Leave(slot *Slot[T]) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.gate.Free(slot.place)
}

// rouse has Run look who is next.
func (r *Room[T]) rouse() {
	select {
	case r.wake <- struct{}{}:
	default: // it is about to
	}
}

// Answered notes a reply to a client; first tells that it is the first one to its request.
func (r *Room[T]) Answered(tag uint64, answer Answer, first bool, now int64) {
	r.mu.Lock()
	r.gate.Answered(tag, answer, first, now)
	waiting := r.gate.Waiting() > 0
	r.mu.Unlock()
	if waiting {
		r.rouse()
	}
}

// Crowded tells whether requests had to wait, or were refused, of late.
func (r *Room[T]) Crowded(now int64) bool {
	at := r.crowdedAt.Load()
	return at != 0 && now-at < crowdedFor.Nanoseconds()
}

// Waiting is how many requests wait.
func (r *Room[T]) Waiting() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.gate.Waiting()
}

// Run sends what waits as its turn comes, until ctx is done. clock is the clock of all the other calls.
func (r *Room[T]) Run(ctx context.Context, clock func() int64, way Way[T]) {
	due := time.NewTimer(0)
	defer due.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.wake:
		case <-due.C:
		}
		if wait, more := r.Release(clock(), way); more {
			due.Reset(max(wait, releaseEvery))
		}
	}
}

// Release sends what may go, and returns when there may be more if requests still wait. One goroutine calls it.
func (r *Room[T]) Release(now int64, way Way[T]) (wait time.Duration, more bool) {
	for n := atOnce; n == atOnce; {
		n = r.take(now, way)
		for _, place := range r.next[:n] {
			slot := &r.slots[place]
			way.Send(&slot.note, slot.bytes[:slot.n], now)
		}
		way.Flush()
		r.mu.Lock()
		for _, place := range r.next[:n] {
			r.gate.Free(place)
		}
		wait, more = r.gate.Due(now), r.gate.Waiting() > 0
		r.mu.Unlock()
	}
	return wait, more
}

// take puts the places of those whose turn has come into next, and drops those that waited in vain.
func (r *Room[T]) take(now int64, way Way[T]) (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for n < atOnce {
		verdict, place := r.gate.Next(now)
		switch verdict {
		case Wait:
			return n
		case Refuse:
			slot := &r.slots[place]
			way.Refused(&slot.note, slot.bytes[:slot.n], now)
			r.gate.Free(place)
		case Send:
			r.next[n] = place
			n++
		}
	}
	return n
}
