package tcp

import (
	"net"
	"time"
)

// share waits until the route's rate, which bounds what goes to clients, allows n bytes. A copier that waits holds a
// buffer or a pipe, as it does for a slow client.
func (c *copier) share(n int) error {
	s := c.session
	if c.direction != toClient || !s.settings.Shaper.On() {
		return nil
	}
	client := s.fate.client
	if !client.IsValid() {
		client = s.peer.Addr()
	}
	if s.settings.Shaper.Take(s.aborting(), client, int64(n), s.keepAlive) != nil {
		return net.ErrClosed
	}
	return nil
}

// piece is how much of n bytes is best passed on at a time.
func (c *copier) piece(n int) int {
	if c.direction != toClient || !c.session.settings.Shaper.On() {
		return n
	}
	return int(c.session.settings.Shaper.Piece(int64(n)))
}

// keepAlive is called while the session waits for its rate or its queue: that time counts neither for its lease nor for
// its idle timeout.
func (s *session) keepAlive() error {
	s.lease.Touch()
	if s.settings.Idle > 0 {
		s.moved.Store(time.Now().UnixNano())
	}
	return nil
}

// aborting is closed when the session is aborted.
func (s *session) aborting() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone == nil {
		s.gone = make(chan struct{})
		if s.aborted {
			close(s.gone)
		}
	}
	return s.gone
}
