package tcp

import (
	"net"
)

// share waits until the route's rate allows n bytes to the client. A copier holds a buffer or a pipe while it waits, as
// it does for a slow client.
func (c *copier) share(n int) error {
	s := c.session
	if c.direction != toClient || !s.settings.Shaper.On() {
		return nil
	}
	client := s.outcome.client
	if !client.IsValid() {
		client = s.peer.Addr()
	}
	if s.settings.Shaper.Take(s.aborting(), client, int64(n), s.keepAlive) != nil {
		return net.ErrClosed
	}
	return nil
}

// piece is how many of n bytes to pass on at a time.
func (c *copier) piece(n int) int {
	if c.direction != toClient || !c.session.settings.Shaper.On() {
		return n
	}
	return int(c.session.settings.Shaper.Piece(int64(n)))
}

// keepAlive is called while the session waits for its rate, a time in which it is not idle.
func (s *session) keepAlive() error {
	s.lease.Touch()
	if s.settings.Idle > 0 {
		s.moveNow()
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
