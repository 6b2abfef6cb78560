// Package queue bounds how many machines a route serves at a time. The other machines wait, and are served in the order
// of their arrival. A machine is a client address (IPv6: a /64) with all of its requests and connections.
//
// Package shaper bounds how fast the machines are served.
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
	// initramfs once it has the kernel.
	hold = time.Second
	// step is the time between two calls of Request.While.
	step = 500 * time.Millisecond
)

// The reasons for which a machine is not served.
var (
	// ErrFull: too many machines wait already.
	ErrFull = errors.New("too many machines wait")
	// ErrBusy: the machine would have to wait, and its client comes again instead.
	ErrBusy = errors.New("other machines are served")
	// ErrGone: the machine has gone while it waited.
	ErrGone = errors.New("the machine has gone")
)

// Queue is that of one route. The zero Queue, and nil, serve all machines at once.
type Queue struct {
	on atomic.Bool

	mu       sync.Mutex
	most     int // machines served at a time; 0 is no bound
	length   int // machines waiting at a time
	machines map[netip.Addr]*machine
	served   int
	waiting  list.List[*machine]
	resting  []*machine // with a place and no transfer, the longest first
	timer    *time.Timer
	average  time.Duration // moving average of the waits
	refused  [refusals]uint64

	waits prometheus.Observer // in seconds; may be nil
}

// machine is a machine that is served, or waits.
type machine struct {
	addr      netip.Addr
	transfers int           // under way
	waiters   int           // requests that wait for the machine to be served
	came      time.Time     // the beginning of its wait
	admitted  chan struct{} // closed when the machine is served
	served    bool
	rests     time.Time // the end of its last transfer, while it keeps its place without one
	link      list.Link[*machine]
}

// Request is one of a machine's transfers.
type Request struct {
	// From is the client's address.
	From netip.Addr
	// Done ends the wait when it is closed. While is called from time to time during the wait, and ends it by an error.
	// Both may be nil.
	Done  <-chan struct{}
	While func() error
	// Retries means that the client comes again when it is told to (Retry-After): its request does not wait.
	Retries bool
}

// On reports whether there is a bound.
func (q *Queue) On() bool { return q != nil && q.on.Load() }

// SetLimits changes how many machines are served at a time, and how many may wait. A machine that is served keeps its
// place. With most 0 there is no bound, and all machines that wait are served.
func (q *Queue) SetLimits(most, length int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.most, q.length = most, length
	q.on.Store(most > 0)
	q.admit()
}

// Enter waits until the machine is served, and begins one of its transfers. The caller ends the transfer by end.
func (q *Queue) Enter(r Request) (end func(), err error) {
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
		return func() { q.end(m) }, nil
	}
	m.waiters++
	q.mu.Unlock()
	err = r.wait(m.admitted)
	q.mu.Lock()
	defer q.mu.Unlock()
	m.waiters--
	if err != nil {
		q.give(m)
		return nil, err
	}
	q.begin(m)
	return func() { q.end(m) }, nil
}

// refusal is the reason for which a new machine is not served and may not wait. The caller holds mu.
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

// wait waits until the machine is served.
func (r Request) wait(admitted <-chan struct{}) error {
	ticker := time.NewTicker(step)
	defer ticker.Stop()
	for {
		select {
		case <-admitted:
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

// add has a new machine wait, behind the others. The caller holds mu.
func (q *Queue) add(addr netip.Addr) *machine {
	m := &machine{addr: addr, came: time.Now(), admitted: make(chan struct{})}
	if q.machines == nil {
		q.machines = map[netip.Addr]*machine{}
	}
	q.machines[addr] = m
	q.waiting.Add(&m.link, m)
	return m
}

// admit serves as many waiting machines as there are places. The caller holds mu.
func (q *Queue) admit() {
	for q.waiting.Len() > 0 && (q.most == 0 || q.served < q.most) {
		m := q.waiting.Take()
		m.served = true
		q.served++
		close(m.admitted)
		waited := time.Since(m.came)
		q.average += (waited - q.average) / 8
		if q.waits != nil {
			q.waits.Observe(waited.Seconds())
		}
	}
	q.look()
}

// begin begins a transfer of a machine that is served. The caller holds mu.
func (q *Queue) begin(m *machine) {
	m.transfers++
	m.rests = time.Time{}
}

// end ends a transfer.
func (q *Queue) end(m *machine) {
	q.mu.Lock()
	defer q.mu.Unlock()
	m.transfers--
	q.give(m)
}

// give frees the place of a machine without transfers: after hold if others wait, else at once. The caller holds mu.
func (q *Queue) give(m *machine) {
	switch {
	case m.transfers > 0 || m.waiters > 0:
	case !m.served: // its last request has gone
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

// free frees a machine's place. The caller holds mu.
func (q *Queue) free(m *machine) {
	m.served = false
	delete(q.machines, m.addr)
	q.served--
}

// look frees the places of the machines that have had no transfer for hold, and sets the timer for the next one. It
// skips machines with a new transfer. The caller holds mu.
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

// lookIn has look called after d. The caller holds mu.
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

// Waiting is the number of machines that wait.
func (q *Queue) Waiting() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.waiting.Len()
}

// RetryAfter is the time after which a client that does not wait may come again: the average wait, 1 to 60 s.
func (q *Queue) RetryAfter() time.Duration {
	q.mu.Lock()
	defer q.mu.Unlock()
	return min(max(q.average.Round(time.Second), time.Second), time.Minute)
}
