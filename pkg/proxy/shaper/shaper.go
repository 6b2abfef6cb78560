// Package shaper bounds how fast a route sends, and shares the rate fairly among the route's clients.
//
// A sender asks its route's [Shaper] for bytes before it sends them. While clients wait, the shaper grants a quantum of
// bytes at a time to the client that was granted least (start-time fair queueing). So each client address gets the same
// rate, however many connections it has, and the others share the rate that a client does not use.
// docs/design/decisions.md has the decision.
package shaper

import (
	"container/heap"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tinkerbell/stack/internal/list"
	"github.com/tinkerbell/stack/pkg/edge/limit"
)

const (
	// quantumTime is the time that one quantum takes at the rate; leastQuantum and mostQuantum bound the quantum, in
	// bytes. A smaller quantum shares more evenly, a larger one costs fewer wake-ups.
	quantumTime               = time.Millisecond
	leastQuantum, mostQuantum = 4 << 10, 256 << 10
	// burst is how long unused bytes of the rate may be granted later: a timer that is late on a busy machine, or a pause
	// of all clients, loses only the bytes of the time beyond it.
	burst = 25 * time.Millisecond
	// credit is the number of quanta that a client may fall behind the others and is granted later: a client that writes
	// before it asks again must not lose its share to a client with another connection waiting.
	credit = 4
	// forgetAfter is how long a client is remembered without a request.
	forgetAfter = time.Second
	// step is the time between two calls of the function that ends the wait of a sender.
	step = 500 * time.Millisecond
)

// Shaper is the rate of one route. The zero Shaper, and nil, have no rate: they grant every request at once.
type Shaper struct {
	on atomic.Bool

	mu      sync.Mutex
	start   time.Time     // the zero of the times below
	rate    int64         // bits a second; 0 is no bound
	quantum int64         // bytes
	next    time.Duration // when the next bytes may be granted
	clock   int64         // the count of the client served last before its grant, in bytes: newcomers' counts begin there
	clients map[netip.Addr]*client
	swept   time.Duration
	backlog backlog // clients that wait, the next one first
	order   uint64
	timer   *time.Timer
	granted uint64 // bytes

	waits prometheus.Observer // in seconds; may be nil

	waiters sync.Pool // of *waiter
}

// client is a client address.
type client struct {
	granted int64         // count of bytes, on the scale of the shaper's clock
	used    time.Duration // the time of the last request or grant
	waiters list.List[*Waiter]
	order   uint64 // of arrival: decides among clients with equal counts
	place   int    // in the backlog
}

// Waiter is a sender that may have to wait. It has one request at a time.
type Waiter struct {
	// Ready is called when a request that Ask did not grant at once is granted. It is called by any goroutine, and must
	// not wait.
	Ready func()

	client     *client // nil while it does not wait
	size, left int64   // bytes of the request, and those not granted yet
	asked      time.Duration
	link       list.Link[*Waiter] // in the client's waiters, then in a list of granted ones
}

// On reports whether there is a rate. Without one, senders need not ask.
func (s *Shaper) On() bool { return s != nil && s.on.Load() }

// Piece is how many of n bytes are best asked for at a time.
func (s *Shaper) Piece(n int64) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.rate == 0 {
		return n
	}
	return min(n, s.quantum)
}

// SetRate changes the rate, in bits a second, also for waiting senders; 0 is no rate.
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

// Ask asks for n bytes to a client. If it returns false, Ready will be called when they are granted, unless Cancel is
// called before.
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

// Cancel takes a request back. It returns false if the request was granted: Ready has been called, or is about to be.
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

// Return gives back bytes that were granted and are not sent.
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
	c.granted -= n
	if c.waiters.Len() > 0 {
		heap.Fix(&s.backlog, c.place)
	}
}

// Take waits until n bytes may be sent to a client. It returns net.ErrClosed when done is closed, or the error of
// while, which is called from time to time during the wait. Both may be nil.
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
			err = net.ErrClosed
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

// waiter is the Waiter of a goroutine.
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

// span is the time that n bytes take at the rate. The caller holds mu.
func (s *Shaper) span(n int64) time.Duration {
	return time.Duration(float64(n) * 8 / float64(s.rate) * float64(time.Second))
}

// clientOf finds a client, or makes one that has been granted as much as the others. The caller holds mu.
func (s *Shaper) clientOf(addr netip.Addr, now time.Duration) *client {
	c := s.clients[addr]
	if c == nil {
		s.sweep(now)
		c = &client{granted: s.clock}
		s.clients[addr] = c
	}
	c.used = now
	return c
}

// sweep forgets clients without requests. The caller holds mu.
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

// wait puts a request behind its client's other ones, and the client into the backlog. The caller holds mu.
func (s *Shaper) wait(w *Waiter) {
	c := w.client
	idle := c.waiters.Len() == 0
	c.waiters.Add(&w.link, w)
	if idle {
		c.granted = max(c.granted, s.clock-credit*s.quantum)
		s.order++
		c.order = s.order
		heap.Push(&s.backlog, c)
	}
}

// dispatch grants the bytes that the rate allows now, and sets the timer for the next ones. It returns the waiters
// whose requests are granted in full. The caller holds mu, lets it go, and passes them to call.
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
			s.order++
			c.order = s.order
			heap.Fix(&s.backlog, 0)
		}
	}
	if len(s.backlog) > 0 {
		s.wakeIn(s.next - now)
	}
	return ready
}

// call calls Ready of the waiters. A waiter may ask again in it.
func call(granted list.List[*Waiter]) {
	for w := granted.Take(); w != nil; w = granted.Take() {
		w.Ready()
	}
}

// charge grants n bytes to a client. The caller holds mu.
func (s *Shaper) charge(c *client, n int64, now time.Duration) {
	s.clock = max(s.clock, c.granted)
	c.granted += n
	c.used = now
	s.next = max(s.next, now-burst) + s.span(n)
	s.granted += uint64(n)
}

// wakeIn has dispatch called after d. The caller holds mu.
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
