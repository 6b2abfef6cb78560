// Package shaper bounds how fast a route sends, and shares the rate fairly among the route's clients.
//
// A sender takes bytes from its route's [Shaper] before it sends them. While clients wait for bytes, they get them in
// turns, those first that have had least (start-time fair queueing): each client address gets the same, however many
// connections it has, and what a client does not take is shared by the others. docs/design/rate.md has the decision.
//
// Not its job: sending, or how many clients there are (that is package queue).
package shaper

import (
	"container/heap"
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
	// quantumTime is the time that one turn's bytes take at the rate; leastQuantum and mostQuantum bound them. Smaller
	// turns share more evenly, larger ones cost fewer wake-ups.
	quantumTime               = time.Millisecond
	leastQuantum, mostQuantum = 4 << 10, 256 << 10
	// burst is for how long bytes that were not granted in time may be granted later: a timer that is late on a busy
	// machine, or a pause of all clients, loses no more than what lies behind that.
	burst = 25 * time.Millisecond
	// credit is how many turns a client may be behind the others and get them back: one that writes before it asks again
	// must not lose its turn to one that always has another connection waiting.
	credit = 4
	// forgetAfter is how long a client is remembered that takes nothing.
	forgetAfter = time.Second
	// step is how often a sender that waits is asked whether it still wants to.
	step = 500 * time.Millisecond
)

// errDone ends the wait of a sender that has gone.
var errDone = errors.New("the sender has gone")

// Shaper is one route's rate. The zero Shaper, and nil, have none: all that is asked for is granted.
type Shaper struct {
	on atomic.Bool

	mu      sync.Mutex
	start   time.Time // what the times below are counted from
	rate    int64     // bits a second; 0 is no bound
	quantum int64     // bytes of a turn
	next    time.Duration
	clock   int64 // what the client that was served last had had, in bytes: where newcomers begin
	clients map[netip.Addr]*client
	swept   time.Duration
	backlog backlog // clients that wait, the next one first
	turn    uint64
	timer   *time.Timer
	granted uint64 // bytes

	waits prometheus.Observer // of seconds; may be nil

	waiters sync.Pool // of *waiter
}

// client is an address for which something is sent.
type client struct {
	had     int64 // bytes, on the scale of the shaper's clock
	used    time.Duration
	waiters list.List[*Waiter]
	turn    uint64 // decides among clients that have had the same
	place   int    // in the backlog
}

// Waiter is a sender that may have to wait. It has one request at a time.
type Waiter struct {
	// Ready is called when what Ask did not grant at once has been. It is called from any goroutine, and must not wait.
	Ready func()

	client     *client // nil while it does not wait
	size, left int64   // bytes that it asked for, and those that are not granted yet
	asked      time.Duration
	link       list.Link[*Waiter] // in the client's, then in those that are granted
}

// On is whether there is a rate. Where there is none, senders need not ask.
func (s *Shaper) On() bool { return s != nil && s.on.Load() }

// Piece is how many of n bytes are best taken at a time.
func (s *Shaper) Piece(n int64) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.rate == 0 {
		return n
	}
	return min(n, s.quantum)
}

// SetRate changes the rate, in bits a second, also for those who wait; 0 is none.
func (s *Shaper) SetRate(bits int64) {
	s.mu.Lock()
	now := s.now()
	before := s.dispatch(now)
	if debt := s.next - now; debt > 0 && bits > 0 {
		s.next = now + time.Duration(float64(debt)*float64(s.rate)/float64(bits))
	}
	s.rate = bits
	s.quantum = min(max(bits/8*int64(quantumTime)/int64(time.Second), leastQuantum), mostQuantum)
	s.on.Store(bits > 0)
	behind := s.dispatch(now)
	s.mu.Unlock()
	call(before)
	call(behind)
}

// Ask asks for n bytes to a client. True is that they are granted; else Ready will be called, unless Cancel is before.
func (s *Shaper) Ask(w *Waiter, to netip.Addr, n int64) bool {
	s.mu.Lock()
	if s.rate == 0 || n <= 0 {
		s.mu.Unlock()
		return true
	}
	now := s.now()
	w.client, w.size, w.left, w.asked = s.clientOf(limit.Key(to), now), n, n, now
	s.wait(w)
	ready := s.dispatch(now)
	granted := w.client == nil
	if granted {
		ready.Remove(&w.link)
	}
	s.mu.Unlock()
	call(ready)
	return granted
}

// Cancel takes a request back. False is that it was granted: Ready has been called, or is about to be.
func (s *Shaper) Cancel(w *Waiter) bool {
	s.mu.Lock()
	c := w.client
	if c == nil {
		s.mu.Unlock()
		return false
	}
	c.waiters.Remove(&w.link)
	w.client = nil
	if c.waiters.Len() == 0 {
		heap.Remove(&s.backlog, c.place)
	}
	s.giveBack(c, w.size-w.left)
	s.mu.Unlock()
	return true
}

// Return gives bytes back that were granted and are not sent.
func (s *Shaper) Return(to netip.Addr, n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.clients[limit.Key(to)]; c != nil && n > 0 {
		s.giveBack(c, n)
	}
}

// giveBack is Return for a client. The caller holds mu.
func (s *Shaper) giveBack(c *client, n int64) {
	if s.rate == 0 {
		return
	}
	s.next -= s.span(n)
	c.had -= n
	if c.waiters.Len() > 0 {
		heap.Fix(&s.backlog, c.place)
	}
}

// Take waits until n bytes may be sent to a client. It ends with an error when done is closed, or with that of while,
// which is called from time to time as it waits; both may be nil.
func (s *Shaper) Take(done <-chan struct{}, to netip.Addr, n int64, while func() error) error {
	w, ok := s.waiters.Get().(*waiter)
	if !ok {
		w = newWaiter()
	}
	defer s.waiters.Put(w)
	if s.Ask(&w.Waiter, to, n) {
		return nil
	}
	ticker := time.NewTicker(step)
	defer ticker.Stop()
	var err error
	for err == nil {
		select {
		case <-w.granted:
			return nil
		case <-done:
			err = errDone
		case <-ticker.C:
			if while != nil {
				err = while()
			}
		}
	}
	if !s.Cancel(&w.Waiter) {
		<-w.granted
		s.Return(to, n)
	}
	return err
}

// waiter is a goroutine that waits.
type waiter struct {
	Waiter
	granted chan struct{}
}

func newWaiter() *waiter {
	w := &waiter{granted: make(chan struct{}, 1)}
	w.Ready = func() { w.granted <- struct{}{} }
	return w
}

// now is the time since the shaper was first used. The caller holds mu.
func (s *Shaper) now() time.Duration {
	if s.start.IsZero() {
		s.start = time.Now()
	}
	return time.Since(s.start)
}

// span is how long n bytes take at the rate. The caller holds mu.
func (s *Shaper) span(n int64) time.Duration {
	return time.Duration(float64(n) * 8 / float64(s.rate) * float64(time.Second))
}

// clientOf finds a client, or begins with it where the others are. The caller holds mu.
func (s *Shaper) clientOf(addr netip.Addr, now time.Duration) *client {
	c := s.clients[addr]
	if c == nil {
		s.sweep(now)
		c = &client{had: s.clock}
		s.clients[addr] = c
	}
	c.used = now
	return c
}

// sweep forgets clients that take nothing. The caller holds mu.
func (s *Shaper) sweep(now time.Duration) {
	if s.clients != nil && now-s.swept < forgetAfter {
		return
	}
	s.swept = now
	kept := make(map[netip.Addr]*client, len(s.clients)) // a map never shrinks
	for addr, c := range s.clients {
		if c.waiters.Len() > 0 || now-c.used < forgetAfter {
			kept[addr] = c
		}
	}
	s.clients = kept
}

// wait puts a request behind its client's others, and the client into the backlog. The caller holds mu.
func (s *Shaper) wait(w *Waiter) {
	c := w.client
	idle := c.waiters.Len() == 0
	c.waiters.Add(&w.link, w)
	if idle {
		c.had = max(c.had, s.clock-credit*s.quantum)
		s.turn++
		c.turn = s.turn
		heap.Push(&s.backlog, c)
	}
}

// dispatch grants what the rate has room for, and sets the timer for what it has not. The caller holds mu, and calls
// what it returns without.
func (s *Shaper) dispatch(now time.Duration) (ready list.List[*Waiter]) {
	for len(s.backlog) > 0 && (s.next <= now || s.rate == 0) {
		c := s.backlog[0]
		w := c.waiters.First()
		if n := min(w.left, s.quantum); s.rate > 0 {
			s.charge(c, n, now)
			w.left -= n
		} else {
			w.left = 0
		}
		if w.left == 0 {
			c.waiters.Remove(&w.link)
			w.client = nil
			ready.Add(&w.link, w)
			if s.waits != nil {
				s.waits.Observe((now - w.asked).Seconds())
			}
		}
		if c.waiters.Len() == 0 {
			heap.Pop(&s.backlog)
		} else {
			s.turn++
			c.turn = s.turn
			heap.Fix(&s.backlog, 0)
		}
	}
	if len(s.backlog) > 0 {
		s.wakeIn(s.next - now)
	}
	return ready
}

// call tells waiters that they have been granted all. A waiter may ask again meanwhile.
func call(granted list.List[*Waiter]) {
	for w := granted.Take(); w != nil; w = granted.Take() {
		w.Ready()
	}
}

// charge has a client served. The caller holds mu.
func (s *Shaper) charge(c *client, n int64, now time.Duration) {
	s.clock = max(s.clock, c.had)
	c.had += n
	c.used = now
	s.next = max(s.next, now-burst) + s.span(n)
	s.granted += uint64(n)
}

// wakeIn has dispatch called. The caller holds mu.
func (s *Shaper) wakeIn(d time.Duration) {
	if s.timer == nil {
		s.timer = time.AfterFunc(d, s.wake)
		return
	}
	s.timer.Reset(d)
}

func (s *Shaper) wake() {
	s.mu.Lock()
	ready := s.dispatch(s.now())
	s.mu.Unlock()
	call(ready)
}
