package tcp

import "github.com/tinkerbell/stack/pkg/proxy/shaper"

// shaped reports whether the route has a rate for the direction.
func (s *side) shaped() bool { return s.direction == toClient && s.session.settings.Shaper.On() }

// piece is how many of n bytes to pass on at a time.
func (s *side) piece(n int) int {
	if !s.shaped() {
		return n
	}
	return int(s.session.settings.Shaper.Piece(int64(n)))
}

// askForShare asks the route's rate for what was read. It reports whether that may be written at once; if not, resume
// is called later.
func (s *side) askForShare() bool {
	if !s.unasked || !s.shaped() {
		return true
	}
	s.unasked = false
	if s.waiter == nil {
		s.waiter = &shaper.Waiter{Ready: func() { s.session.do(s.resume) }}
	}
	s.session.in.wantTicks(s.session)
	return s.session.settings.Shaper.Ask(s.waiter, s.session.source.Addr(), s.held())
}

// takeBack withdraws what the direction waits for.
func (s *side) takeBack() {
	rate := s.session.settings.Shaper
	if !rate.Cancel(s.waiter) {
		rate.Return(s.session.source.Addr(), s.held())
	}
}

// held is how many bytes were read and not written.
func (s *side) held() int64 {
	n := len(s.rest)
	if s.pipe != nil {
		n += s.pipe.Held
	}
	return int64(n)
}

// stayActive is called while the session waits for its rate, a time in which it is not idle.
func (s *session) stayActive() {
	s.charge.Touch()
	s.moveNow()
}
