package feed

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tinkerbell/stack/pkg/boot"
)

// Source is a program that tells of boots.
type Source struct {
	Program string    `json:"program"`
	Pod     string    `json:"pod"`
	Heard   bool      `json:"heard"`           // it is heard now
	Since   time.Time `json:"since"`           // when it came, or went
	Lost    uint64    `json:"lost"`            // events that it has dropped, as far as it told this program
	LostAt  time.Time `json:"lostAt,omitzero"` // when that was told last
	Clock   string    `json:"clock,omitempty"` // how far its clock is behind this program's, which counts
}

const (
	// mostSources is how many programs are remembered, and forgetAfter for how long one that has gone.
	mostSources = 64
	forgetAfter = 10 * time.Minute
	// clockTolerance is how far a clock may be off and count as right: an event is late by as much anyway.
	clockTolerance = 50 * time.Millisecond
	// clockJump is how much later than usual a post arrives of which the sender's clock was set.
	clockJump = time.Second
	// clockWeight is how slowly a clock that drifts is followed, in posts.
	clockWeight = 64
)

// source is what is known of a program. It is guarded by its sources' lock, but for head.
type source struct {
	head        head // the first that it sent
	connections int
	since       time.Time
	next        uint64 // number of the event that comes next
	lost        uint64
	lostAt      time.Time
	begun       bool // next and behind are known
	behind      time.Duration
	over        bool // it has ended in order
}

// sources are the programs by session.
type sources struct {
	twins twins
	lost  atomic.Uint64 // of all, those that are forgotten too

	mu  sync.Mutex
	all map[string]*source
}

// begin notes that a program has opened a connection.
func (s *sources) begin(h head) *source {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if s.all == nil {
		s.all = make(map[string]*source)
	}
	for session, each := range s.all {
		if each.connections == 0 && (now.Sub(each.since) > forgetAfter || len(s.all) >= mostSources) {
			delete(s.all, session)
		}
	}
	one := s.all[h.Session]
	if one == nil {
		h.Program, h.Pod = boot.CleanCut(h.Program, 255), boot.CleanCut(h.Pod, 255)
		one = &source{head: h}
		s.all[h.Session] = one
	}
	one.connections++
	one.since = now
	return one
}

// end notes that a connection has ended.
func (s *sources) end(one *source) {
	s.mu.Lock()
	defer s.mu.Unlock()
	one.connections--
	one.since = time.Now()
	if one.over {
		delete(s.all, one.head.Session)
	}
}

// post notes the head of a post with so many events. It returns how many of them were taken before, and how far to
// move their times.
func (s *sources) post(one *source, h head, events uint64, now time.Time) (takenBefore uint64, shift int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if one.over = h.Over; one.over {
		return 0, 0
	}
	if one.begun && h.Number < one.next {
		takenBefore = one.next - h.Number
	} else if h.Lost > 0 {
		s.lost.Add(h.Lost)
		one.lost += h.Lost
		one.lostAt = now
	}
	late := time.Duration(now.UnixNano() - h.Now)
	switch change := late - one.behind; {
	case !one.begun, change < 0, change > clockJump:
		one.behind = late // the shortest way is the best measure
	default:
		one.behind += change / clockWeight
	}
	one.begun, one.next = true, max(one.next, h.Number+events)
	if one.behind.Abs() > clockTolerance {
		shift = int64(one.behind)
	}
	return takenBefore, shift
}

// list are the programs, for people.
func (s *sources) list() []Source {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]Source, 0, len(s.all))
	for _, each := range s.all {
		one := Source{
			Program: each.head.Program, Pod: each.head.Pod, Heard: each.connections > 0, Since: each.since, Lost: each.lost,
			LostAt: each.lostAt,
		}
		if each.behind.Abs() > clockTolerance {
			one.Clock = each.behind.Round(time.Millisecond).String()
		}
		all = append(all, one)
	}
	slices.SortFunc(all, func(a, b Source) int {
		return cmp.Or(cmp.Compare(a.Program, b.Program), cmp.Compare(a.Pod, b.Pod), a.Since.Compare(b.Since))
	})
	return all
}
