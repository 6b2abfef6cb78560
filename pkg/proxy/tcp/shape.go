package tcp

import (
	"net"
	"time"
)

// share waits until n bytes may be passed on by the route's rate, which is for those to clients. A copier that waits
// holds a buffer or a pipe, as it does for a client that does not take them.
func (c *copier) share(n int) error {
	s := c.session
	if c.way != toClient || !s.settings.Shaper.On() {
		return nil
	}
	client := s.fate.client
	if !client.IsValid() {
		client = s.peer.Addr()
	}
	if s.settings.Shaper.Take(s.aborting(), client, int64(n), s.held) != nil {
		return net.ErrClosed
	}
	return nil
}

// piece is how much of n bytes is best passed on at a time.
func (c *copier) piece(n int) int {
	if c.way != toClient || !c.session.settings.Shaper.On() {
		return n
	}
	return int(c.session.settings.Shaper.Piece(int64(n)))
}

// held is while it is we who hold the session up: that counts neither for its lease nor for its idle timeout.
func (s *session) held() error {
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
