// Package queue bounds how many machines a route serves at a time. The others wait, and are served in the order in
// which they came. A machine is a client address (IPv6: a /64), with all that it asks for at a time.
//
// Not its job: how fast those that are served get on (that is package shaper).
package queue

import (
	"errors"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tinkerbell/stack/internal/list"
	"github.com/tinkerbell/stack/pkg/edge/limit"
)

const (
	// hold is how long a machine keeps its place between two transfers while others wait: firmware asks for the
	// initramfs when it has the kernel.
	hold = time.Second
	// step is how often one that waits is asked whether it still wants to.
	step = 500 * time.Millisecond
)

// Why a machine is not let in.
var (
	// ErrFull is that as many wait as may.
	ErrFull = errors.New("too many machines wait")
	// ErrBusy is that it would have to wait.
	ErrBusy = errors.New("other machines are served")
	// ErrGone is that it has gone while it waited.
	ErrGone = errors.New("the machine has gone")
)

// Queue is one route's. The zero Queue, and nil, let all machines in at once.
type Queue struct {
	on atomic.Bool

	mu       sync.Mutex
	most     int // machines that are served at a time; 0 is no bound
	length   int // machines that wait at most
	machines map[netip.Addr]*machine
	served   int
	waiting  list.List[*machine]
	resting  []*machine // those that keep their place without a transfer, the longest first
	timer    *time.Timer
	average  time.Duration // of the last waits
	refused  [refusals]uint64

	waits prometheus.Observer // of seconds; may be nil
}

// machine is one that is served, or waits.
type machine struct {
	addr      netip.Addr
	transfers int // that are under way
	waiters   int
	came      time.Time     // when it began to wait
	turn      chan struct{} // closed when it is served
	served    bool
	rests     time.Time // since when it has had no transfer, while it keeps its place
	link      list.Link[*machine]
}

// Request is one of a machine's transfers.
type Request struct {
	// From is whose it is.
	From netip.Addr
	// Done ends the wait when it is closed. While is called from time to time as it waits, and ends the wait with an
	// error. Both may be nil.
	Done  <-chan struct{}
	While func() error
	// Retries is that the client comes again when it is told to: it does not wait.
	Retries bool
}

// On is whether there is a bound.
func (q *Queue) On() bool { return q != nil && q.on.Load() }

// SetLimits changes how many machines are served at a time, and how many may wait. Those that are served stay so. With
// most 0 there is no bound, and nobody waits any more.
func (q *Queue) SetLimits(most, length int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.most, q.length = most, length
	q.on.Store(most > 0)
	q.admit()
}

// Enter begins a transfer of a machine, and waits for the machine's turn before. The transfer ends with leave.
func (q *Queue) Enter(r Request) (leave func(), err error) {
	addr := limit.Key(r.From)
	q.mu.Lock()
	if q.most == 0 {
		q.mu.Unlock()
		return func() {}, nil
	}
	m := q.machines[addr]
	if m == nil {
		full := q.served >= q.most || q.waiting.Len() > 0
		if why := q.refusal(full, r.Retries); why != nil {
			q.mu.Unlock()
			return nil, why
		}
		m = q.add(addr)
		q.admit()
	} else if !m.served && r.Retries {
		q.refused[refusedRetry]++
		q.mu.Unlock()
		return nil, ErrBusy
	}
	if m.served {
		q.begin(m)
		q.mu.Unlock()
		return func() { q.leave(m) }, nil
	}
	m.waiters++
	q.mu.Unlock()
	err = r.wait(m.turn)
	q.mu.Lock()
	defer q.mu.Unlock()
	m.waiters--
	if err != nil {
		q.give(m)
		return nil, err
	}
	q.begin(m)
	return func() { q.leave(m) }, nil
}

// refusal is why a machine that is new is not let in, or may not wait. The caller holds mu.
func (q *Queue) refusal(full, retries bool) error {
	switch {
	case full && retries:
		q.refused[refusedRetry]++
		return ErrBusy
	case full && q.waiting.Len() >= q.length:
		q.refused[refusedFull]++
		return ErrFull
	}
	return nil
}

// wait waits for a machine's turn.
func (r Request) wait(turn <-chan struct{}) error {
	ticker := time.NewTicker(step)
	defer ticker.Stop()
	for {
		select {
		case <-turn:
			return nil
		case <-r.Done:
			return ErrGone
		case <-ticker.C:
			if r.While == nil {
				continue
			}
			if err := r.While(); err != nil {
				return err
			}
		}
	}
}

// add puts a machine behind those that wait. The caller holds mu.
func (q *Queue) add(addr netip.Addr) *machine {
	m := &machine{addr: addr, came: time.Now(), turn: make(chan struct{})}
	if q.machines == nil {
		q.machines = map[netip.Addr]*machine{}
	}
	q.machines[addr] = m
	q.waiting.Add(&m.link, m)
	return m
}

// admit serves as many of those that wait as there are places. The caller holds mu.
func (q *Queue) admit() {
	for q.waiting.Len() > 0 && (q.most == 0 || q.served < q.most) {
		m := q.waiting.Take()
		m.served = true
		q.served++
		close(m.turn)
		waited := time.Since(m.came)
		q.average += (waited - q.average) / 8
		if q.waits != nil {
			q.waits.Observe(waited.Seconds())
		}
	}
	q.look()
}

// begin notes a transfer of a machine that is served. The caller holds mu.
func (q *Queue) begin(m *machine) {
	m.transfers++
	m.rests = time.Time{}
}

// leave ends a transfer.
func (q *Queue) leave(m *machine) {
	q.mu.Lock()
	defer q.mu.Unlock()
	m.transfers--
	q.give(m)
}

// give has a machine keep its place for a while, or give it up, where it has nothing under way. The caller holds mu.
func (q *Queue) give(m *machine) {
	switch {
	case m.transfers > 0 || m.waiters > 0:
	case !m.served: // the last of its requests has gone
		q.waiting.Remove(&m.link)
		delete(q.machines, m.addr)
	case q.waiting.Len() > 0:
		m.rests = time.Now()
		q.resting = append(q.resting, m)
		q.look()
	default:
		q.free(m)
	}
}

// free gives a machine's place up. The caller holds mu.
func (q *Queue) free(m *machine) {
	m.served = false
	delete(q.machines, m.addr)
	q.served--
}

// look frees the places of machines that have rested for long, and looks again when the next one has. Those that have
// gone on meanwhile are skipped. The caller holds mu.
func (q *Queue) look() {
	freed := false
	for len(q.resting) > 0 {
		m := q.resting[0]
		if idle := !m.rests.IsZero() && m.served; idle {
			if left := hold - time.Since(m.rests); left > 0 && q.waiting.Len() > 0 {
				q.lookIn(left)
				break
			}
			q.free(m)
			freed = true
		}
		q.resting = q.resting[1:]
	}
	if freed {
		q.admit()
	}
}

// lookIn has look called. The caller holds mu.
func (q *Queue) lookIn(d time.Duration) {
	if q.timer != nil {
		q.timer.Reset(d)
		return
	}
	q.timer = time.AfterFunc(d, func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.look()
	})
}

// Waiting is how many machines wait.
func (q *Queue) Waiting() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.waiting.Len()
}

// RetryAfter is when a client that does not wait may come again: after as long as others waited of late, 1 to 60 s.
func (q *Queue) RetryAfter() time.Duration {
	q.mu.Lock()
	defer q.mu.Unlock()
	return min(max(q.average.Round(time.Second), time.Second), time.Minute)
}
