package datagram

import "time"

// rank orders sessions by the steps that their clients have made: the datagrams that only a client which gets its
// answers can send at the right time. Whoever forges sources can guess the first of them, but has to send every single
// one. A full table gives up the lower ranks first.
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

// silentAfter is the time without a step after which a session gives way to anybody. Clients send again after at most 5
// seconds: a session that has begun outlives two datagrams that were lost, and a longer one has more to lose.
var silentAfter = [ranks]time.Duration{
	rankNew: 5 * time.Second, rankFirst: 12 * time.Second, rankSome: 20 * time.Second,
	rankMany: 30 * time.Second, rankLong: 60 * time.Second,
}

// reserve is the part of a group (one in so many) that a rank holds even against higher ones, so that a table full of
// transfers leaves newcomers the time to make a step.
var reserve = [ranks]int{rankNew: 4, rankFirst: 8, rankSome: 8, rankMany: 8}

// The lists that a session is in.
const (
	listActivity = iota // of a worker, by the last datagram of either side
	listWorker          // these by the last step
	listClient
	listNetwork
	lists
)

type links[T any] struct{ prev, next *Session[T] }

// queue is a list of sessions, the one that waits longest first.
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
	// yielded is when a long session that was alive last gave way.
	yielded time.Time
}

// longLives is the least time, on average, for which long sessions that are alive keep their places. Where more honest
// clients ask than there are places, each would otherwise turn out another one, and none would come to its end.
const longLives = 60 * time.Second

// yields tells whether one more long session that is alive may give way, and notes that it does.
func (g *group[T]) yields(now time.Time, bound int) bool {
	if now.Sub(g.yielded) < longLives/time.Duration(max(bound, 1)) {
		return false
	}
	g.yielded = now
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

// victim is the session that gives way to a newcomer, nil where there is none. It is dead where it has ended, or its
// client was silent for longer than clients are; a living one gives way only to a client that is known to be serious.
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
		if r == rankLong || q.n > bound/reserve[r] {
			return q.first, false
		}
		if s == nil {
			s = q.first
		}
	}
	return s, false
}
