package sock

import (
	"errors"
	"iter"
	"net/netip"
	"sync"

	"github.com/tinkerbell/stack/pkg/edge/limit"
)

// Conns are a front's open connections, bounded in total and by client. The zero Conns is empty. A bound of 0 is none.
type Conns[C comparable] struct {
	mu      sync.Mutex
	open    map[C]netip.Addr   // and the client that the connection is counted for; invalid for none
	clients map[netip.Addr]int // only those with connections
}

// Errors of [Conns.Add].
var (
	ErrFull       = errors.New("the front has as many connections as it may")
	ErrClientFull = errors.New("the client has as many connections as it may")
)

// Add counts a connection, unless the open ones have reached most, or those of this client perClient. An invalid client
// is not known yet: [Conns.Count] names it later. Add calls begin, if it is not nil, before any other method sees the
// connection.
func (s *Conns[C]) Add(c C, client netip.Addr, most, perClient int, begin func()) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if most > 0 && len(s.open) >= most {
		return ErrFull
	}
	if s.open == nil {
		s.open, s.clients = map[C]netip.Addr{}, map[netip.Addr]int{}
	}
	if client.IsValid() && !s.count(c, client, perClient) {
		return ErrClientFull
	}
	if !client.IsValid() {
		s.open[c] = client
	}
	if begin != nil {
		begin()
	}
	return nil
}

// Count counts a connection for its client, and is false where the client has as many as it may. A connection that is
// counted already stays so; one that was removed is not counted.
func (s *Conns[C]) Count(c C, client netip.Addr, perClient int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if counted, ok := s.open[c]; !ok || counted.IsValid() {
		return true
	}
	return s.count(c, client, perClient)
}

func (s *Conns[C]) count(c C, client netip.Addr, perClient int) bool {
	client = limit.Key(client)
	if perClient > 0 && s.clients[client] >= perClient {
		return false
	}
	s.clients[client]++
	s.open[c] = client
	return true
}

// Remove removes a connection, and reports whether it was there.
func (s *Conns[C]) Remove(c C) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	client, ok := s.open[c]
	delete(s.open, c)
	if client.IsValid() {
		if s.clients[client]--; s.clients[client] <= 0 {
			delete(s.clients, client)
		}
	}
	return ok
}

// Len is how many connections there are.
func (s *Conns[C]) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.open)
}

// All iterates over the connections. It holds the lock: the body of the range loop must not call another method.
func (s *Conns[C]) All() iter.Seq[C] {
	return func(yield func(C) bool) {
		s.mu.Lock()
		defer s.mu.Unlock()
		for c := range s.open {
			if !yield(c) {
				return
			}
		}
	}
}
