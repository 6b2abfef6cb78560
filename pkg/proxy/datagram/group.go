package datagram

import "time"

// rank orders sessions by the steps that their clients have made: datagrams that only a client which receives the
// answers can send at the right time. A sender with forged addresses can guess them, but has to send each single one.
// A full table evicts the lower ranks first.
type rank uint8

const (
	rankEnded rank = iota // the session is over, and lingers
	rankNew               // not one step
	rankFirst             // 1 to 7
	rankSome              // 8 to 63
	rankMany              // 64 to 511
	rankLong              // more
	ranks
)

func rankOf(steps uint64) rank {
	switch {
	case steps == 0:
		return rankNew
	case steps < 8:
		return rankFirst
	case steps < 64:
		return rankSome
	case steps < 512:
		return rankMany
	}
	return rankLong
}

// silentAfter is the time without a step after which a session is evicted for any new client. Clients repeat a
// datagram after at most 5 seconds: a session that has begun survives the loss of two datagrams, and one with more
// steps survives more.
var silentAfter = [ranks]time.Duration{
	rankNew: 5 * time.Second, rankFirst: 12 * time.Second, rankSome: 20 * time.Second,
	rankMany: 30 * time.Second, rankLong: 60 * time.Second,
}

// reserve is the part of a group (one in so many) that a rank keeps even against higher ones, so that a table full of
// transfers leaves newcomers the time for a step.
var reserve = [ranks]int{rankNew: 4, rankFirst: 8, rankSome: 8, rankMany: 8}

// The lists that a session is in: those of its groups, by the client's last step, and that of the worker's live
// sessions, by the last datagram of either side.
const (
	listWorker = iota
	listClient
	listNetwork
	groupCount
	listActivity = groupCount
	listCount    = groupCount + 1
)

type links[T any] struct{ prev, next *Session[T] }

// queue is a list of sessions, the longest silent one first.
type queue[T any] struct {
	first, last *Session[T]
	n           int
}

func (q *queue[T]) push(s *Session[T], list int) {
	s.links[list] = links[T]{prev: q.last}
	if q.last != nil {
		q.last.links[list].next = s
	} else {
		q.first = s
	}
	q.last = s
	q.n++
}

func (q *queue[T]) remove(s *Session[T], list int) {
	l := s.links[list]
	if l.prev != nil {
		l.prev.links[list].next = l.next
	} else {
		q.first = l.next
	}
	if l.next != nil {
		l.next.links[list].prev = l.prev
	} else {
		q.last = l.prev
	}
	s.links[list] = links[T]{}
	q.n--
}

// A group is the sessions that share a bound: all of a worker, those of a client address, or those of an IPv6 network.
type group[T any] struct {
	list   int
	queues [ranks]queue[T]
	n      int
	// evicted is when a long session that was alive was evicted last.
	evicted time.Time
}

// longLives is the least time, on average, for which long sessions that are alive keep their places. Where more honest
// clients ask than there are places, each would otherwise evict another one, and no transfer would complete.
const longLives = 60 * time.Second

// takeLongEviction notes that a long session that is alive is evicted; false where none may be now.
func (g *group[T]) takeLongEviction(now time.Time, bound int) bool {
	if now.Sub(g.evicted) < longLives/time.Duration(max(bound, 1)) {
		return false
	}
	g.evicted = now
	return true
}

func (g *group[T]) add(s *Session[T]) {
	g.queues[s.rank].push(s, g.list)
	g.n++
}

func (g *group[T]) remove(s *Session[T]) {
	g.queues[s.rank].remove(s, g.list)
	g.n--
}

// victim is the session that is evicted for a newcomer, nil where there is none. It is dead where it has ended, or
// where its client has been silent for longer than silentAfter. A session that may be alive is evicted only for a
// client that has asked before.
func (g *group[T]) victim(now time.Time, bound int) (s *Session[T], dead bool) {
	if s = g.queues[rankEnded].first; s != nil {
		return s, true
	}
	longest := 1.0
	for r := rankNew; r < ranks; r++ {
		head := g.queues[r].first
		if head == nil {
			continue
		}
		if silent := float64(now.Sub(head.stepped)) / float64(silentAfter[r]); silent >= longest {
			longest, s, dead = silent, head, true
		}
	}
	if dead {
		return s, true
	}
	for r := rankNew; r < ranks; r++ {
		q := &g.queues[r]
		if q.n == 0 {
			continue
		}
		if r == rankLong || q.n > bound/reserve[r] { // long ones have no reserve
			return q.first, false
		}
		if s == nil {
			s = q.first
		}
	}
	return s, false
}
