// Package shaper bounds how fast a route sends, and shares the rate fairly among the route's clients.
//
// A sender asks its route's [Shaper] for bytes before it sends them. While clients wait, the shaper grants a quantum of
// bytes at a time to the client that was granted least (start-time fair queueing). So each client address gets the same
// rate, however many connections it has, and the others share the rate that a client does not use.
// docs/design/decisions.md has the decision.
package shaper

import (
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

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

// Shaper is the rate of one route. The zero Shaper, and nil, have no rate.
type Shaper struct {
	on atomic.Bool

	mu      sync.Mutex
	rate    int64     // bits a second; 0 is no bound
	quantum int64     // bytes
	next    time.Time // when the next bytes may be granted
	clock   int64     // the count of the client served last before its grant, in bytes: newcomers' counts begin there
	clients map[netip.Addr]*client
	swept   time.Time
	waiting []*client // those with waiters; of clients with equal counts the first one is next
	timer   *time.Timer
	granted uint64 // bytes
}

// client is a client address.
type client struct {
	granted int64     // count of bytes, on the scale of the shaper's clock
	used    time.Time // the time of the last request or grant
	waiters []*waiter
}

// waiter is a sender that waits for some of n bytes.
type waiter struct {
	client  *client
	n       int64
	granted chan int64 // takes how many
}

// On reports whether there is a rate. Without one, senders need not ask.
func (s *Shaper) On() bool { return s != nil && s.on.Load() }

// SetRate changes the rate, in bits a second, also for waiting senders; 0 is no rate.
func (s *Shaper) SetRate(bits int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	s.rate, s.next = bits, now // nothing by the rate before is a debt, or saved
	s.quantum = min(max(bits/8*int64(quantumTime)/int64(time.Second), leastQuantum), mostQuantum)
	s.on.Store(bits > 0)
	s.dispatch(now)
}

// Take waits until some of n bytes may be sent to a client, and returns how many. It returns net.ErrClosed when done is
// closed, or the error of while, which is called from time to time during the wait. Both may be nil.
func (s *Shaper) Take(done <-chan struct{}, to netip.Addr, n int64, while func() error) (some int64, err error) {
	w := &waiter{n: n, granted: make(chan int64, 1)}
	s.wait(limit.Key(to), w)
	select {
	case some = <-w.granted:
		return some, nil
	default:
	}
	ticker := time.NewTicker(step)
	defer ticker.Stop()
	for err == nil {
		select {
		case some = <-w.granted:
			return some, nil
		case <-done:
			err = net.ErrClosed
		case <-ticker.C:
			if while != nil {
				err = while()
			}
		}
	}
	if n, granted := s.cancel(w); granted {
		s.Return(to, n)
	}
	return 0, err
}

// Return gives back bytes that were granted and are not sent.
func (s *Shaper) Return(to netip.Addr, n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.clients[limit.Key(to)]; c != nil && s.rate > 0 {
		s.next = s.next.Add(-s.span(n))
		c.granted -= n
	}
}

// wait puts a request behind its client's other ones, and grants what the rate allows now.
func (s *Shaper) wait(to netip.Addr, w *waiter) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	c := s.clientOf(to, now)
	if len(c.waiters) == 0 {
		c.granted = max(c.granted, s.clock-credit*s.quantum)
		s.waiting = append(s.waiting, c)
	}
	w.client, c.waiters = c, append(c.waiters, w)
	s.dispatch(now)
}

// cancel takes a request back, or what it was granted meanwhile.
func (s *Shaper) cancel(w *waiter) (n int64, granted bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := w.client
	i := slices.Index(c.waiters, w)
	if i < 0 {
		return <-w.granted, true
	}
	c.waiters = slices.Delete(c.waiters, i, i+1)
	if len(c.waiters) == 0 {
		s.waiting = slices.DeleteFunc(s.waiting, func(each *client) bool { return each == c })
	}
	return 0, false
}

// span is the time that n bytes take at the rate. The caller holds mu.
func (s *Shaper) span(n int64) time.Duration {
	return time.Duration(float64(n) * 8 / float64(s.rate) * float64(time.Second))
}

// clientOf finds a client, or makes one that has been granted as much as the others. The caller holds mu.
func (s *Shaper) clientOf(addr netip.Addr, now time.Time) *client {
	if now.Sub(s.swept) >= forgetAfter {
		s.swept = now
		kept := map[netip.Addr]*client{} // a map never shrinks
		for each, c := range s.clients {
			if c.recent(now) {
				kept[each] = c
			}
		}
		s.clients = kept
	}
	c := s.clients[addr]
	if c == nil {
		c = &client{granted: s.clock}
		s.clients[addr] = c
	}
	c.used = now
	return c
}

// recent reports whether the client has asked lately, or waits.
func (c *client) recent(now time.Time) bool {
	return len(c.waiters) > 0 || now.Sub(c.used) < forgetAfter
}

// dispatch grants the bytes that the rate allows now, and sets the timer for the next ones. The caller holds mu.
func (s *Shaper) dispatch(now time.Time) {
	for len(s.waiting) > 0 && (s.rate == 0 || !s.next.After(now)) {
		least := 0
		for i, c := range s.waiting {
			if c.granted < s.waiting[least].granted {
				least = i
			}
		}
		c := s.waiting[least]
		w := c.waiters[0]
		n := w.n
		if s.rate > 0 {
			n = min(n, s.quantum)
			s.clock = max(s.clock, c.granted)
			c.granted += n
			c.used = now
			if earliest := now.Add(-burst); s.next.Before(earliest) {
				s.next = earliest
			}
			s.next = s.next.Add(s.span(n))
			s.granted += uint64(n)
		}
		w.granted <- n
		if c.waiters = slices.Delete(c.waiters, 0, 1); len(c.waiters) == 0 {
			s.waiting = slices.Delete(s.waiting, least, least+1)
		}
	}
	if len(s.waiting) == 0 {
		return
	}
	if s.timer == nil {
		s.timer = time.AfterFunc(s.next.Sub(now), s.wake)
		return
	}
	s.timer.Reset(s.next.Sub(now))
}

func (s *Shaper) wake() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dispatch(time.Now())
}
